from __future__ import annotations

from pathlib import Path

import pytest

from sigmatau.errors import ConfigError
from sigmatau.experiment.config import Cell, Recipe, assign, network, parse, settings_of
from tests.experiment.conftest import tiny, tiny_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))


def test_cells_are_methods_x_orders_x_seeds_x_settings() -> None:
    recipe = tiny_recipe(
        methods=["finetune", {"method": "apd1", "vary": {"l1": [1e-4, 6e-4], "l2": [1, 10]}}],
        orders=["A", [2, 0, 1]],
        seeds=[0, 1, 2],
    )
    ids = [cell.id for cell in recipe.cells()]
    assert len(ids) == len(set(ids)) == 5 * 2 * 3
    assert "finetune-A-0" in ids
    assert "apd1.l1=0.0006.l2=10-2.0.1-2" in ids


def test_a_row_may_have_its_own_orders_and_seeds() -> None:
    rows = [{"method": "finetune", "orders": ["C"], "seeds": [7]}, "apd1"]
    ids = [cell.id for cell in tiny_recipe(methods=rows).cells()]
    assert sorted(ids) == ["apd1-A-0", "apd1-B-0", "finetune-C-7"]


def test_rows_that_would_share_a_folder_are_refused() -> None:
    rows = [{"method": "apd1", "label": "one"}, {"method": "apd1", "label": "two"}]
    with pytest.raises(ConfigError, match="two rows of the recipe are apd1-A-0"):
        tiny_recipe(methods=rows).cells()


def test_a_label_picks_all_that_vary_made_of_its_row() -> None:
    rows = [
        {"method": "apd1", "label": "l1", "vary": {"l1": [1e-4, 6e-4]}},
        {"method": "apd1", "label": "budget", "vary": {"budget": [0.1, 0.2]}},
        "finetune",
    ]
    recipe = tiny_recipe(methods=rows, orders=["A"])

    def picked(*only: str) -> list[str]:
        return [cell.label for cell in recipe.cells(only)]

    assert picked("budget") == ["budget budget=0.1", "budget budget=0.2"]
    assert picked("l1 l1=0.0006", "finetune") == ["l1 l1=0.0006", "finetune"]
    assert len(picked("apd1")) == 4
    assert len(picked()) == 5


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"order": ["A"]}, "did you mean 'orders'"),
        ({"methods": [{"method": "apd1", "labell": "x"}]}, "did you mean 'label'"),
        ({"settings": {"seed": 3}}, "give --seed"),
        ({"rows": {"train": 1}}, "at least 2 rows"),
        ({"methods": []}, "methods"),
        ({"tasks": 0}, "tasks=0"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        tiny_recipe(**given)


def test_a_file_that_is_no_recipe_is_told(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    with pytest.raises(ConfigError, match="cannot read"):
        Recipe.read(path)
    path.write_text("a: [")
    with pytest.raises(ConfigError, match="not YAML"):
        Recipe.read(path)
    path.write_text("just words")
    with pytest.raises(ConfigError, match="no recipe"):
        Recipe.read(path)


def test_numbers_in_files_are_numbers() -> None:
    assert parse("[6e-4, 1E3, -2.5e+1, 1e-2, 0.5, 3, x]", "") == [
        6e-4,
        1e3,
        -25.0,
        0.01,
        0.5,
        3,
        "x",
    ]


def test_set_reaches_every_part_of_a_cell() -> None:
    fields = assign(
        ["l1=6e-4", "tasks=2", "backbone.widths=[8, 8]", "rows.train=50", "options.val=9"]
    )
    assert fields == {
        "settings": {"l1": 6e-4},
        "tasks": 2,
        "backbone": {"widths": [8, 8]},
        "rows": {"train": 50},
        "options": {"val": 9},
    }
    with pytest.raises(ConfigError, match="key=value"):
        assign(["epochs"])
    with pytest.raises(ConfigError, match="did you mean 'backbone'"):
        assign(["backbon.widths=3"])


def test_given_settings_go_before_published_ones_and_those_before_the_streams() -> None:
    def cell(**settings: object) -> Cell:
        return Cell.of({"stream": "permuted-mnist", "method": "a-gem", "settings": settings})

    assert settings_of(cell())["lr"] == 0.1  # published
    assert settings_of(cell())["batch_size"] == 10
    assert settings_of(cell(lr=0.2))["lr"] == 0.2
    assert settings_of(tiny(settings={"epochs": 3}))["epochs"] == 3
    assert settings_of(tiny())["batch_size"] == 32  # the stream's


def test_another_backbone_does_not_inherit_the_options_of_the_usual_one() -> None:
    assert tiny(backbone="lenet").backbone == {"name": "lenet"}
    assert network("digits", {"name": "lenet"}) == {"name": "lenet"}
    assert network("digits", {"widths": [3, 3]}) == {"name": "mlp", "widths": [3, 3]}


def test_a_label_may_name_settings() -> None:
    row = {"method": "apd1", "label": "l1 of {l1}", "vary": {"l1": [1e-4, 6e-4], "l2": [1]}}
    cells = tiny_recipe(methods=[row], orders=["A"]).cells()
    assert [cell.label for cell in cells] == ["l1 of 0.0001 l2=1", "l1 of 0.0006 l2=1"]
    fixed = {"method": "apd1", "label": "{budget}, {budget}", "settings": {"budget": 0.1}}
    assert tiny_recipe(methods=[fixed], orders=["A"]).cells()[0].label == "0.1, 0.1"
    with pytest.raises(ConfigError, match="names 'bugdet'; did you mean 'budget'"):
        tiny_recipe(methods=[{**fixed, "label": "{bugdet}"}]).cells()


def test_a_row_with_a_network_of_its_own_is_measured_by_that_of_the_recipe() -> None:
    wide = {"method": "finetune", "backbone": {"widths": [9, 9]}}
    small, large = tiny_recipe(methods=["finetune", wide], orders=["A"]).cells()
    assert small.base is None
    assert large.base == small.backbone != large.backbone
    third = tiny_recipe(methods=[wide], orders=["A"], base={"widths": [3, 3]}).cells()[0]
    assert third.base == {"widths": [3, 3]}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_recipe_here_is_one(path: Path) -> None:
    from sigmatau.methods import registry

    cells = Recipe.read(path).cells()
    assert cells
    for cell in cells:
        given = {k: v for k, v in settings_of(cell).items() if k not in ("head", "keep")}
        registry.entry(cell.method).cls.Settings.of(given)
