"""Which pixels make two images similar at a layer: integrated gradients, Grad-CAM, and checks of both."""
