"""Files that name operations of the program, and what each knows about them.

A new operation is an enum value and a row (operation), an emitter (the compiler's parts), a method of Operations, its
time and its bytes (cost, traffic), a case of the verifier and one of the rehearsal. A file that is not listed here
reads the table; one that starts to know operations by name is a second place of one fact.
"""

import re

from tidy import repository

KNOWS = {
    "fsdp/plan/program/operation.cc": "the row",
    "fsdp/plan/program/traffic.cc": "its bytes",
    "fsdp/plan/predict/cost.cc": "its time",
    "fsdp/engine/operations/operations.cc": "what it does",
    "fsdp/plan/verify/verify_flow.cc": "the proof: what it needs and gives",
    "fsdp/plan/verify/verify_shape.cc": "the proof: where it runs",
    "fsdp/plan/verify/verify_memory.cc": "the proof: what it reads and writes",
    "fsdp/plan/verify/testing/rehearsal.cc": "the rehearsal",
}
EMITTERS = {
    "fsdp/plan/program/stage_transfers.cc",
    "fsdp/plan/program/evaluation_program.cc",
    "fsdp/plan/program/gathered_params.cc",
    "fsdp/plan/program/reduced_grads.cc",
    "fsdp/plan/program/schedule.cc",
    "fsdp/plan/program/staged_activations.cc",
    "fsdp/plan/program/staged_state.cc",
    "fsdp/plan/program/training_program.cc",
}
# Files that name single operations, for saved activations and for transfers between stages.
ONE_OF_THEM = {
    "fsdp/engine/operations/stage_buffers.cc": {"kForward", "kForwardBackward", "kSend", "kReceive", "kSendGrad", "kReceiveGrad"},
    "fsdp/plan/predict/simulate.cc": {"kForward", "kBackward", "kForwardBackward", "kBackwardWeights", "kDropActivations", "kFetchActivations"},
    "fsdp/plan/predict/simulate.h": {"kForward"},
    "fsdp/plan/program/program.h": {"kForward"},
    "fsdp/plan/program/schedule.h": {"kForward"},
    "fsdp/plan/verify/verify_stages.cc": {"kSend", "kReceive", "kSendGrad", "kReceiveGrad", "kSendTiedGrad", "kReceiveTiedGrad"},
}


def operations():
    enum = re.search(r"enum class Op \{(.*?)\};", repository.text("fsdp/plan/program/operation.h"), re.DOTALL)
    return set(re.findall(r"\bk\w+", enum[1]))


def named_in(path):
    return set(re.findall(r"\bOp::(k\w+)", repository.text(path)))


def test_only_listed_files_name_operations():
    faults = []
    for path in map(str, repository.own_cpp(".h", ".cc")):
        if path.endswith("_test.cc") or path in KNOWS or path in EMITTERS:
            continue
        extra = named_in(path) - ONE_OF_THEM.get(path, set())
        if extra:
            faults.append(f"{path}: names {', '.join(sorted(extra))}; move the property that it uses to operation.cc")
    stale = {path: names - named_in(path) for path, names in ONE_OF_THEM.items() if names - named_in(path)}
    assert not faults and not stale, "\n".join(faults) + str(stale or "")


def test_listed_files_name_every_operation():
    faults = []
    for path, what in KNOWS.items():
        missing = operations() - named_in(path)
        if missing:
            faults.append(f"{path} ({what}) lacks {', '.join(sorted(missing))}")
    emitted = set().union(*(named_in(path) for path in EMITTERS))
    if operations() - emitted:
        faults.append(f"nothing emits {', '.join(sorted(operations() - emitted))}")
    assert not faults, "\n".join(faults)
