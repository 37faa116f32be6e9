"""What pydantic finds wrong with a request, in OpenAI's words: message, parameter and code."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sherlock.rag.domain.errors import ECHOED_CHARS


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request; `param` is `None` where it is the body as a whole."""

    message: str
    param: str | None
    code: str | None


NO_OBJECT = Fault("The body must be a JSON object, sent with content type application/json.", None, None)


def most_specific(found: Sequence[Mapping[str, Any]], body: Any) -> Fault:
    """The fault to report. Of a union every branch complains: the one that got furthest was meant."""

    def reach(error: Mapping[str, Any]) -> tuple[bool, int]:
        name = parameter(error["loc"], body, missing=False) or ""
        no_word = error["type"] == "literal_error" and isinstance(error["input"], Mapping)
        return error["type"] not in TYPE_NAMES and not no_word, name.count(".") + name.count("[")

    return fault(max(found, key=reach), body)


def fault(error: Mapping[str, Any], body: Any) -> Fault:
    """OpenAI's message and code for one of pydantic's errors about `body`."""
    kind = error["type"]
    if kind == "json_invalid":
        return Fault(
            f"We could not parse the JSON body of your request: {error['ctx']['error']}.", None, None
        )
    param = parameter(error["loc"], body, missing=kind == "missing")
    if param is None:
        return NO_OBJECT
    if kind == "missing" and is_null(error["loc"], body):
        message = f"Invalid type for '{param}': expected a value, but got null instead."
        return Fault(message, param, "invalid_type")
    return FAULTS.get(kind, invalid)(param, error)


# ── one function for each kind of fault ─────────────────────────────────────

TYPE_NAMES = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "bool_type": "a boolean",
    "bool_parsing": "a boolean",
    "list_type": "an array of values",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
BOUNDS = {
    "less_than_equal": ("above maximum", "<=", "le"),
    "greater_than_equal": ("below minimum", ">=", "ge"),
    "less_than": ("above maximum", "<", "lt"),
    "greater_than": ("below minimum", ">", "gt"),
}
LENGTHS = {
    "string_too_long": ("string", "long", "maximum", "above_max_length"),
    "string_too_short": ("string", "short", "minimum", "below_min_length"),
    "too_long": ("array", "long", "maximum", "above_max_length"),
    "too_short": ("array", "short", "minimum", "below_min_length"),
}


def missing(param: str, _: Mapping[str, Any]) -> Fault:
    return Fault(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def untagged(param: str, error: Mapping[str, Any]) -> Fault:
    """The member is missing that tells which shape of a union was meant."""
    member = error["ctx"]["discriminator"].strip("'")
    return missing(f"{param}.{member}", error)


def unknown(param: str, _: Mapping[str, Any]) -> Fault:
    return Fault(f"Unknown parameter: '{param}'.", param, "unknown_parameter")


def wrong_type(param: str, error: Mapping[str, Any]) -> Fault:
    expected, got = TYPE_NAMES[error["type"]], described(error["input"])
    message = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return Fault(message, param, "invalid_type")


def unsupported(param: str, error: Mapping[str, Any]) -> Fault:
    """Not one of the values, or of the tags of a union, that there are."""
    context = error["ctx"]
    supported = context.get("expected") or context.get("expected_tags")
    got = echo(context.get("tag", error["input"]))
    message = f"Invalid value for '{param}': {got}. Supported values are: {supported}."
    return Fault(message, param, "invalid_value")


def out_of_bounds(param: str, error: Mapping[str, Any]) -> Fault:
    side, sign, key = BOUNDS[error["type"]]
    value, bound = error["input"], error["ctx"][key]
    number = "integer" if isinstance(value, int | str) else "decimal"
    message = (
        f"Invalid '{param}': {number} {side} value. "
        f"Expected a value {sign} {bound}, but got {echo(value, quoted=False)} instead."
    )
    return Fault(message, param, f"{number}_{side.replace('imum', '').replace(' ', '_')}_value")


def wrong_length(param: str, error: Mapping[str, Any]) -> Fault:
    what, side, bound, code = LENGTHS[error["type"]]
    value, limit = error["input"], error["ctx"][f"{bound[:3]}_length"]
    if isinstance(value, Mapping):
        what = "object"
    message = (
        f"Invalid '{param}': {what} too {side}. "
        f"Expected {article(what)} with {bound} length {limit}, but got {len(value or ())} instead."
    )
    return Fault(message, param, f"{what}_{code}")


def invalid(param: str, error: Mapping[str, Any]) -> Fault:
    """Whatever else a validator says, in its own words."""
    return Fault(f"Invalid '{param}': {sentence(error['msg'])}", param, "invalid_value")


FAULTS: Mapping[str, Callable[[str, Mapping[str, Any]], Fault]] = {
    "missing": missing,
    "union_tag_not_found": untagged,
    "extra_forbidden": unknown,
    "literal_error": unsupported,
    "union_tag_invalid": unsupported,
    **dict.fromkeys(TYPE_NAMES, wrong_type),
    **dict.fromkeys(BOUNDS, out_of_bounds),
    **dict.fromkeys(LENGTHS, wrong_length),
}
"""By pydantic's type of error; any other is `invalid`."""


# ── words ───────────────────────────────────────────────────────────────────


def parameter(loc: Sequence[str | int], body: Any, *, missing: bool) -> str | None:
    """The field an error is about, written `filters.filters[0].key`; `None`: the body as a whole.

    pydantic's location names the branches of unions too; what is not found in the body is left out.
    """
    source, *steps = loc
    if steps and steps[-1] == "[key]":  # a map's key, not its value, is wrong
        steps = steps[:-2]
    if source != "body":
        return str(steps[0]).removesuffix("[]") if steps else None
    name, value, branch = "", body, None
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        if not last and branch is not value and is_branch(step, value):
            branch = value
            continue
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            name, value = f"{name}[{step}]", value[step]
        elif isinstance(value, Mapping) and step in value:
            name, value = f"{name}.{step}".removeprefix("."), value[step]
        elif last and missing:
            name = f"{name}.{step}".removeprefix(".")
    return name or None


def is_branch(step: str | int, value: Any) -> bool:
    """Whether a step that could be a member is the branch of a union, which pydantic names by its `type`."""
    return isinstance(value, Mapping) and step in value and step == value.get("type")


def is_null(loc: Sequence[str | int], body: Any) -> bool:
    """Whether what is said to be missing was given as `null`, which counts as not given."""
    value = body
    for step in loc[1:-1]:
        item = isinstance(value, list) and isinstance(step, int)
        if item or (isinstance(value, Mapping) and step in value and not is_branch(step, value)):
            value = value[step]
    return isinstance(value, Mapping) and value.get(loc[-1], ...) is None


def described(value: Any) -> str:
    """The JSON type of a value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in ((str, "a string"), (int, "an integer"), (float, "a decimal"), (list, "an array")):
        if isinstance(value, kind):
            return name
    return "an object"


def echo(value: Any, *, quoted: bool = True) -> str:
    text = str(value)[:ECHOED_CHARS] if isinstance(value, str | int | float) else described(value)
    return f"'{text}'" if quoted and isinstance(value, str) else text


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def sentence(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message if message.endswith(".") else f"{message}."
