from synth.library.boolean import truth_table
from synth.library.cells import cells


def test_names_are_unique():
    names = [cell.name for cell in cells()]
    assert len(set(names)) == len(names)


def test_every_logic_output_has_a_path_from_every_input_it_depends_on():
    for cell in (c for c in cells() if not c.sequential):
        pins = tuple(cell.inputs)
        for output, function in cell.functions.items():
            table = truth_table(function, pins)
            for i, pin in enumerate(pins):
                matters = any((table >> k & 1) != (table >> (k ^ 1 << i) & 1) for k in range(1 << len(pins)))
                assert matters == ((pin, output) in cell.paths), (cell.name, pin, output)


def test_stage_parity_agrees_with_the_timing_sense():
    for cell in cells():
        for key, sense in cell.senses.items():
            lengths = {len(chain) % 2 for chain in cell.paths[key]}
            if sense == "negative_unate":
                assert lengths == {1}, cell.name
            elif sense == "positive_unate" and cell.sequential == {}:
                assert lengths == {0}, cell.name
