from __future__ import annotations

import torch

from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import InTurn, Projection, steps_of
from layerprobe.post_processing.unfitted import unit
from tests.post_processing.fitting import features


def test_a_projection_subtracts_the_mean_before_the_product() -> None:
    project = Projection(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, 1.0]))
    assert project(torch.tensor([[3.0, 4.0]])).tolist() == [[2.0, 6.0]]


def test_without_a_mean_nothing_is_subtracted() -> None:
    assert Projection(torch.tensor([[2.0]]))(torch.tensor([[3.0]])).tolist() == [[6.0]]


def test_nested_maps_are_one_list_of_steps() -> None:
    project = Projection(torch.eye(2))
    assert list(steps_of(InTurn((unit, InTurn((project, unit)), InTurn(()))))) == [unit, project, unit]


def test_a_fitted_chain_consists_of_the_steps_of_its_parts() -> None:
    fitted = parse_chain("l2+pca:2+l2").fit([torch.from_numpy(features(20, 4))], 4, seed=0)
    first, project, last = steps_of(fitted)
    assert (first, last) == (unit, unit)
    assert isinstance(project, Projection)
    assert project.matrix.shape == (4, 2)
