"""The run as one HTML page, from the records of `fsdpctl submit --record` and the job as `fsdpctl get -o json` has it.

All numbers are reported by the coordinator. A missing quantity is shown as missing.
"""
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from statistics import median
from string import Template

from chart import Line, line_chart

# The first steps warm up caches and allocators; a median over them would describe the start.
_WARM_UP_STEPS = 2


def render(reports, job, facts):
    """Renders the page. `reports`: StepReport objects of rank 0 in order. `job`: the Job. `facts`: facts about the run
    that are in neither."""
    steady = [report for report in reports if _int(report, "step") > _WARM_UP_STEPS] or reports
    spec, plan = job.get("spec", {}), job.get("memory_plan", {})
    return Template((Path(__file__).parent / "page.html").read_text()).substitute(
        title=f"{escape(spec.get('name', 'job'))} on fsdpd",
        name=escape(spec.get("name", "job")),
        state=escape(_short(job.get("state", ""), "job_state_")),
        summary=escape(_summary(reports, spec, facts)),
        tiles="".join(_tiles(reports, steady, plan)),
        charts="".join(_charts(reports, plan)),
        memory=_memory(plan),
        swatches="".join(f".s{index} {{ background: var(--c{index}); }}\n" for index in range(1, 8)),
        facts=_facts(reports, job, facts),
        footer=escape("Measured by rank 0 and reported step by step through its agent and the coordinator. The same "
                      "numbers, for every rank, are at each agent's /metrics."))


def _int(message, field):
    return int(message.get(field, 0))  # Protobuf's JSON has 64-bit integers as strings.


def _short(name, prefix):
    return name.lower().removeprefix(prefix)


def _bytes(count):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def _millis(value):
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"


def _count(value):
    return f"{value:,.0f}"


def _percent(value):
    return f"{value * 100:.0f}%"


def _compact(value):
    return f"{value / 1000:.3g}k" if value >= 10_000 else _count(value)


def _overlap(report):
    """Returns the fraction of communication time that is overlapped with compute; None without communication."""
    ops = report.get("ops", [])
    total = sum(op.get("seconds", 0) for op in ops)
    return 1 - sum(op.get("exposed_seconds", 0) for op in ops) / total if total > 0 else None


def _rate(report):
    return _int(report, "tokens") / report["step_seconds"] if report.get("step_seconds") else None


def _step_millis(report):
    return report.get("step_seconds", 0) * 1000


def _points(reports, value):
    pairs = [(_int(report, "step"), value(report)) for report in reports]
    return [(step, number) for step, number in pairs if number is not None]


def _median(reports, value):
    numbers = [number for _, number in _points(reports, value)]
    return median(numbers) if numbers else None


def _measured(field):
    return lambda report: _int(report.get("memory", {}), field)


def _tiles(reports, steady, plan):
    def tile(value, name, detail=""):
        return f"<div class=tile><span>{name}</span><b>{escape(value)}</b><small>{escape(detail)}</small></div>"

    def text(value, form):
        return "n/a" if value is None else form(value)

    first, last = reports[0], reports[-1]
    peak = max(_measured("peak_bytes")(report) for report in reports)
    planned = _int(plan, "peak_bytes")
    mallocs = _measured("device_mallocs")
    early = mallocs(reports[min(_WARM_UP_STEPS, len(reports)) - 1])
    yield tile(f"{last.get('loss', 0):.3f}", "loss", f"from {first.get('loss', 0):.3f} at step {_int(first, 'step')}")
    yield tile(text(_median(steady, _rate), _compact), "tokens per second", "median, all ranks")
    yield tile(text(_median(steady, _step_millis), _millis), "step time", "median")
    yield tile(text(_median(steady, _overlap), _percent), "overlap", "of communication with compute")
    yield tile(_bytes(peak), "peak memory", f"of a rank; planned {_bytes(planned)}" if planned else "of a rank")
    yield tile(_count(mallocs(last) - early), "device mallocs", f"after step {_WARM_UP_STEPS}; {_count(early)} before")


def _charts(reports, plan):
    planned = _int(plan, "peak_bytes")

    def chart(title, name, value, label, **axis):
        return line_chart(title, [Line(name, _points(reports, value))], label, **axis)

    yield chart("Loss", "loss", lambda report: report.get("loss"), lambda value: f"{value:.3g}", from_zero=False)
    yield chart("Step time", "took", _step_millis, _millis)
    yield chart("Communication hidden behind compute", "hidden", _overlap, _percent, high=1.0)
    yield chart("Tokens per second", "tokens/s", _rate, _compact)
    yield _memory_chart(reports, planned)
    yield chart("Device mallocs since the start", "mallocs", _measured("device_mallocs"), _count)


def _memory_chart(reports, planned):
    # One unit for the whole chart, so that the axis has round numbers.
    reserved = _measured("reserved_bytes")
    unit, size = ("GiB", 1 << 30) if max(map(reserved, reports)) > 2 << 30 else ("MiB", 1 << 20)

    def points(value):
        return _points(reports, lambda report: value(report) / size)

    return line_chart("Memory of a rank", [
        Line("measured peak", points(_measured("peak_bytes"))),
        Line("planned peak", points(lambda report: planned) if planned else [], 2, dashed=True),
        Line("held from the device", points(reserved), 3)], lambda value: f"{value:.3g} {unit}")


def _memory(plan):
    components = [(part.get("name", ""), _int(part, "bytes"), part.get("note", "")) for part in plan.get("components", [])]
    total = sum(size for _, size, _ in components)
    if not total:
        return '<p class="note">The job carries no memory plan.</p>'
    color = {name: index % 7 + 1 for index, (name, _, _) in enumerate(components)}
    bar = "".join(f'<i class="s{color[name]}" style="flex: {size}" title="{escape(name)}: {_bytes(size)}"></i>'
                  for name, size, _ in components if size)
    rows = "".join(f'<tr><th><i class="swatch s{color[name]}"></i>{escape(name.replace("_", " "))}</th>'
                   f'<td class="number">{_bytes(size)}</td><td class="number">{_percent(size / total)}</td>'
                   f"<td>{escape(note)}</td></tr>" for name, size, note in components)
    return (f'<div class="bar">{bar}</div><table>{rows}<tr><th>sum</th><td class="number">{_bytes(total)}</td>'
            f'<td class="number">100%</td><td></td></tr></table>')


def _world(spec):
    resources = spec.get("resources", {})
    return (_int(resources, "nodes") or 1), (_int(resources, "ranks_per_node") or 1)


def _device(spec):
    return _short(spec.get("resources", {}).get("device", "cuda"), "device_")


def _summary(reports, spec, facts):
    nodes, per_node = _world(spec)
    tokens = sum(_int(report, "tokens") for report in reports)
    where = ", ".join(sorted(set(facts["gpus"]))) or "CPU"
    return (f"{len(reports)} steps, {tokens:,} tokens, on {nodes * per_node} {where} ranks of {nodes} "
            f"{'node' if nodes == 1 else 'nodes'}")


def _facts(reports, job, facts):
    spec = job.get("spec", {})
    nodes, per_node = _world(spec)
    train, data = spec.get("train", {}), spec.get("data", {})
    source = ", ".join(Path(file.get("path", "")).name for file in data.get("tokens", [])) or "synthetic"
    adamw = spec.get("optimizer", {}).get("adamw", {})
    rows = {
        "id": job.get("id", ""),
        "model": spec.get("model", {}).get("preset", "") or "llama",
        "ranks": "; ".join(map(_placement, job.get("placements", []))) or f"{nodes} x {per_node}",
        "sharding": _strategy(spec),
        "device": ", ".join(facts["gpus"]) or _device(spec),
        "data": f"{source}, {facts['corpus_bytes']:,} characters, sequences of {_int(data, 'sequence_length')}",
        "batch": f"{_int(train, 'global_batch')} sequences per step, {_int(train, 'micro_batch')} per micro-batch",
        "optimizer": f"AdamW, peak learning rate {adamw.get('lr', '3e-4')}, "
                     f"last {reports[-1].get('learning_rate', 0):.2e}",
        "gradient norm": f"{reports[0].get('grad_norm', 0):.3g} at the first step, "
                         f"{reports[-1].get('grad_norm', 0):.3g} at the last",
        "attempts": str(_int(job, "attempt")),
        "time": _times(job),
    }
    lines = [f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items()]
    return f"<table>{''.join(lines)}</table>"


def _placement(place):
    first = _int(place, "first_rank")
    return f"{place.get('node')}: ranks {first} to {first + _int(place, 'ranks') - 1}"


def _strategy(spec):
    names = {"no_shard": "nothing sharded", "optim": "optimizer state", "optim_grads": "optimizer state and gradients",
             "optim_grads_params": "optimizer state, gradients and parameters"}
    name = _short(spec.get("fsdp", {}).get("strategy", "optim_grads_params"), "strategy_")
    return f"{name}: {names.get(name, name)}"


def _times(job):
    create, start, end = (_int(job, f"{name}_unix_nanos") / 1e9 for name in ("create", "start", "end"))
    if not end:
        return "not ended"
    when = datetime.fromtimestamp(create, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"submitted {when}, started after {start - create:.1f} s, took {end - start:.1f} s"
