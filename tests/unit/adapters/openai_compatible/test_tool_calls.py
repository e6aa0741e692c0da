import pytest

from adapters.openai_compatible.frames import CallPart, FunctionPart
from adapters.openai_compatible.tool_calls import ToolCalls


@pytest.mark.parametrize(
    ("fragments", "arguments"),
    [
        (['{"a":', "1}"], [{"a": 1}]),
        (['{"a":"}', '"}'], [{"a": "}"}]),
        (['{"a":1}', "", " ", "{}"], [{"a": 1}, {}]),
        (['{"a":1}\n', "{}"], [{"a": 1}, {}]),
        (['{"a":"', *["y"] * 20_000, '"}'], [{"a": "y" * 20_000}]),
    ],
)
def test_a_name_that_is_repeated_without_an_id_goes_on_until_its_arguments_are_whole(
    fragments: list[str], arguments: list[object]
) -> None:
    calls = ToolCalls()
    for fragment in fragments:
        calls.add_parts([CallPart(function=FunctionPart("x", fragment))])

    assert [call.arguments for call in calls.finished()[0]] == arguments
