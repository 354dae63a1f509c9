# Untried: this file has never been built (see RELEASING.md).
#
#   docker build -t layerprobe .
#   docker run --rm -v "$PWD:/data" -u "$(id -u):$(id -g)" layerprobe choose --model timm:NAME --data folder:images
#
# PyTorch without CUDA, so that the image stays small.
FROM python:3.13-slim

COPY . /source
# One layer: packages that are removed in a later one would still be stored.
RUN pip install --no-cache-dir torch torchvision --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir '/source[timm,export]' \
    && pip uninstall --yes faiss-gpu nvidia-cublas-cu12 nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12 nvidia-curand-cu12 \
    && pip install --no-cache-dir faiss-cpu \
    && rm -r /source

# Models, fonts and lists are kept below HOME: any user may write there.
ENV HOME=/home/layerprobe
RUN mkdir -m 777 "$HOME"
WORKDIR /data
ENTRYPOINT ["layerprobe"]
CMD ["--help"]
