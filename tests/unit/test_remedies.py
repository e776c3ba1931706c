"""Every error that leaves the program says what to do about it."""

import ast
from pathlib import Path

import optimizer
from optimizer import errors

RAISED = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.OptimizerError) and kind is not errors.OptimizerError
}


def test_every_error_is_made_with_a_remedy() -> None:
    made, without = 0, []
    for file in sorted(Path(optimizer.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED:
                made += 1
                if not any(keyword.arg in ("remedy", None) for keyword in node.keywords):
                    without.append(f"{file}:{node.lineno}")
    assert made > 200
    assert not without
