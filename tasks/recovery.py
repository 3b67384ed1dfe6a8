"""How it is told that training went on after a failure."""


def recovery(done: int, unit: str) -> str:
    """Say from where training went on after a failure.

    Args:
        done: how much was done by the checkpoint; 0 without one.
        unit: what is counted: epoch or step.
    """
    if done == 0:
        return "restarted from the beginning: there was no checkpoint yet"
    return f"resumed from the checkpoint of {unit} {done}"
