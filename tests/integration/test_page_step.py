"""Tests of the drawings of a step in the web UI: boxes and areas match the data, in a real browser."""

import re

import pytest

from harness.browser import PROGRAM, Browser
from harness.cluster import Cluster
from harness.specs import ENDLESS, one_rank, spec
from harness.stubs import coordinator as api
from harness.stubs import timeline as timeline_api

pytestmark = pytest.mark.skipif(not PROGRAM, reason="chromium is not installed: deploy/setup does")

# What is drawn, and where the axes of time and of bytes have what: at one moment, as another step may come.
SEEN = """(() => {
  const axes = name => Object.fromEntries(Object.entries(document.querySelector(`svg[${name}]`).dataset)
    .map(([key, value]) => [key, Number(value)]));
  return {
    time: axes("data-lanes"), memory: axes("data-row=memory"),
    boxes: [...document.querySelectorAll("g[data-row]")].map(row => [row.dataset.row,
      [...row.querySelectorAll("path")].map(path => [path.dataset.kind, path.getAttribute("d")])]),
    areas: [...document.querySelectorAll("path[data-component]")].map(path => [path.dataset.component, path.getAttribute("d")]),
    lines: [...document.querySelectorAll("path.line[data-timeline]")].map(path => [path.dataset.timeline, path.getAttribute("d")]),
  };
})()"""
# Colors with too little contrast to their background.
FAINT = """(() => {
  const light = color => color.match(/[\\d.]+/g).map(Number).slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const card = getComputedStyle(document.querySelector("main section")).backgroundColor;
  const track = getComputedStyle(document.querySelector(".track")).fill;
  return [...document.querySelectorAll("path.box, path.area")].map(each => [each.dataset.kind || each.dataset.component,
    Math.min(contrast(getComputedStyle(each).fill, card), contrast(getComputedStyle(each).fill, track))])
    .filter(each => each[1] < 3);
})()"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A job that has ended, one that runs, one that waits for it, and one that was cancelled before it ran."""
    with Cluster(tmp_path_factory.mktemp("watched"), agents=1, slots=2,
                 coordinator_flags=["--web-listen", "127.0.0.1:0"]) as cluster:
        size = {"nodes": 1, "ranks_per_node": 2}
        cluster.ended = cluster.submit(spec(name="ended", steps=30, resources=size))
        cluster.wait_state(cluster.ended, "SUCCEEDED")
        cluster.running = cluster.submit(spec(name="runs", steps=ENDLESS, resources=size))
        cluster.waiting = cluster.submit(spec(name="waits", resources=size, train={"global_batch": 8}))
        cluster.gone = cluster.submit(one_rank(name="gone"))
        cluster.cancel(cluster.gone)
        cluster.wait_step(cluster.running, 2)
        yield cluster
        cluster.cancel_all()


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path / "browser") as driven:
        driven.resize(1240, 2600)
        yield driven


def plan_of(cluster, job_id):
    job = cluster.job(job_id)
    wanted = job.resolved if job.HasField("resolved") else job.spec
    return cluster.api().PlanJob(api.PlanJobRequest(spec=wanted, timeline=True), timeout=60).plan


def planned_runs(plan):
    """Returns [(lane, kind, start, seconds)] of all instructions that take time."""
    spans = zip(plan.instructions, plan.prediction.timeline.spans)
    return [(step.lane, step.op, span.start_seconds, span.seconds) for step, span in spans if span.seconds > 0]


def opened(cluster, browser, job_id):
    browser.open(f"{cluster.page()}#/jobs/{job_id}")
    browser.wait(f"document.querySelector('h1').textContent.startsWith('{job_id}') && "
                 "document.querySelector('g[data-row$=planned]')")


def place(axes, seconds):
    return axes["left"] + (seconds - axes["from"]) * (axes["right"] - axes["left"]) / (axes["to"] - axes["from"])


def drawn_boxes(seen, source):
    """Returns {lane: [(kind, x, width)]}, each kind in order of time."""
    found = {}
    for row, paths in seen["boxes"]:
        lane, whose = row.split(" ", 1)
        if whose == source:
            found[lane] = sorted((kind, float(x), float(width)) for kind, path in paths
                                 for x, width in re.findall(r"M([-\d.]+) [\d.]+h([\d.]+)v", path))
    return found


def assert_boxes(seen, runs, source):
    axes, boxes = seen["time"], drawn_boxes(seen, source)
    assert sorted(boxes) == sorted({lane for lane, *_ in runs})
    for lane, drawn in boxes.items():
        wanted = sorted(each[1:] for each in runs if each[0] == lane and each[2] < axes["to"])
        assert [kind for kind, *_ in drawn] == [kind for kind, *_ in wanted]
        for (_, x, width), (kind, start, seconds) in zip(drawn, wanted):
            assert x == pytest.approx(place(axes, start), abs=0.02), (lane, kind)
            end = place(axes, min(start + seconds, axes["to"]))
            assert end - 0.85 < x + width < max(end, x + 0.4) + 0.02, (lane, kind)


def heights(path, at):
    """Returns the height of an area's upper edge at several positions, in units of the picture."""
    edge = re.match(r"M([-\d.]+) ([-\d.]+)((?:H[-\d.]+V[-\d.]+)*)", path)
    corners = [(float(edge[1]), float(edge[2])), *((float(x), float(y)) for x, y in re.findall(r"H([-\d.]+)V([-\d.]+)", edge[3]))]
    return [next(y for x, y in reversed(corners) if x <= each + 0.06) for each in at]


def assert_edge(axes, path, samples, bytes_of):
    samples = [each for each in samples if each.start_seconds < axes["to"]]
    found = heights(path, [place(axes, each.start_seconds) for each in samples])
    scale = (axes["ground"] - axes["top"]) / axes["most"]
    wanted = [axes["ground"] - scale * bytes_of(each) for each in samples]
    # Of moments closer than a tenth of a pixel the last is seen.
    far = [index for index, each in enumerate(samples[1:])
           if place(axes, each.start_seconds) - place(axes, samples[index].start_seconds) > 0.2]
    assert [found[index] for index in far] == pytest.approx([wanted[index] for index in far], abs=0.11)
    return len(far)


def assert_areas(seen, timeline):
    areas, names = dict(seen["areas"]), list(timeline.components)
    shown = [name for index, name in enumerate(names) if any(each.bytes[index] for each in timeline.memory)]
    assert sorted(areas) == sorted(shown) and len(shown) > 3
    for name in shown:
        assert assert_edge(seen["memory"], areas[name], timeline.memory,
                           lambda each, upto=names.index(name) + 1: sum(each.bytes[:upto])) > 2


@pytest.mark.parametrize("which", ["running", "ended", "waiting", "gone"])
def test_boxes_and_areas_match_plan(watched, browser, which):
    job_id = getattr(watched, which)
    plan = plan_of(watched, job_id)
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        opened(watched, browser, job_id)
        seen = browser.ask(SEEN)
        assert_boxes(seen, planned_runs(plan), "planned")
        assert_areas(seen, plan.prediction.timeline)
        assert browser.ask(FAINT) == [], scheme
    assert "Memory in a step: planned" in browser.text() and "(profile cpu" in browser.text()
    assert not browser.faults, browser.faults


def test_shows_measured_last_step_of_ended_job(watched, browser):
    reported = watched.api().GetStepTimeline(timeline_api.GetStepTimelineRequest(id=watched.ended), timeout=60)
    runs = [(run.lane, run.instruction.split()[0], run.start_seconds, run.seconds) for run in reported.timeline.runs]
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        opened(watched, browser, watched.ended)
        seen = browser.ask(SEEN)
        assert_boxes(seen, runs, "measured")
        (name, path), = seen["lines"]
        assert name == "measured"
        # Under load one instruction may take longer than the axis, and few samples remain to compare.
        assert_edge(seen["memory"], path, reported.timeline.memory, lambda each: sum(each.bytes))
        assert browser.ask(FAINT) == [], scheme
    assert f"Measured by rank 0: step {reported.timeline.step}, " in browser.text()

    # Read in one, the other says how long it was there; of what is gathered twice each box has its own.
    gathers = sorted((run for run in reported.timeline.runs if run.lane == "gather"), key=lambda run: run.start_seconds)
    names = [run.instruction for run in gathers]
    again = next(index for index, name in enumerate(names) if name in names[:index])
    browser.ask("document.querySelector('g[data-row=\"gather measured\"]').focus()")
    browser.press("ArrowRight", again)
    read = browser.wait(f"(text => text.startsWith('gather, measured: {names[again]} takes ') && text)"
                        "(document.querySelectorAll('figure.step .reading')[1].textContent)")
    plan = plan_of(watched, watched.ended)
    twins = [span.seconds for step, span in zip(plan.instructions, plan.prediction.timeline.spans)
             if step.lane == "gather" and f"{step.op} {step.unit}" == names[again]]
    digits, unit = re.search(r"; planned ([\d.]+) ([mµ]s)$", read).groups()
    assert float(digits) * {"ms": 1e-3, "µs": 1e-6}[unit] == pytest.approx(twins[names[:again].count(names[again])], rel=0.01)


def test_slow_measured_step_keeps_plan_visible(watched, browser):
    opened(watched, browser, watched.waiting)
    drawn = browser.ask("""(async () => {
      const { drawTimelines } = await import("./timeline.js");
      const timeline = (name, seconds) => ({ name, seconds, components: [], memory: [],
        runs: [{ lane: "compute", name: "Forward a", start: 0, seconds: seconds / 2 },
               { lane: "compute", name: "Backward a", start: seconds / 2, seconds: seconds / 2 }] });
      const element = document.createElement("div");
      element.append(...drawTimelines([timeline("planned", 1), timeline("measured", 100)], () => "c1", 0).filter(Boolean));
      const axis = element.querySelector("svg[data-lanes]").dataset;
      const widths = [...element.querySelectorAll("g[data-row='compute planned'] path")].map(path => path.getAttribute("d"));
      return { to: Number(axis.to), widths, clipped: [...element.querySelectorAll("[data-clipped]")].map(each => each.dataset.clipped),
        said: element.textContent };
    })()""")
    assert drawn["to"] == 3 and drawn["clipped"] == ["compute measured"], drawn
    assert all(float(re.search(r"h([\d.]+)v", path)[1]) > 150 for path in drawn["widths"]), "the plan's boxes can be seen"
    assert "the longer one continues to 100 s" in drawn["said"]


def test_measurements_follow_running_job(watched, browser):
    opened(watched, browser, watched.running)
    step = "Number(document.body.innerText.match(/Measured by rank 0: step ([\\d,]+)/)[1].replaceAll(',', ''))"
    first = browser.wait(step)
    browser.wait(f"{step} > {first}")
    assert browser.ask("Number(document.querySelector('g[data-row=\"compute measured\"]').dataset.runs)") > 10
    assert not browser.faults, browser.faults


def test_box_shows_name_and_time(watched, browser):
    plan = plan_of(watched, watched.waiting)
    computed = sorted((run for run in planned_runs(plan) if run[0] == "compute"), key=lambda run: run[2])
    opened(watched, browser, watched.waiting)
    for _ in range(30):
        browser.press("Tab")
        if browser.ask("document.activeElement.dataset.row") == "compute planned":
            break
    output = "document.querySelectorAll('figure.step .reading')[1].textContent"
    first = browser.wait(output)
    browser.press("ArrowRight")
    second = browser.wait(f"{output} !== {first!r} && {output}")
    for text, (_, kind, *_) in zip((first, second), computed):
        assert re.fullmatch(rf"compute, planned: {kind} \S+( mb \d+)? takes [\d.]+ [mµ]s, from \S+( [mµ]s)? to [\d.]+ [mµ]s", text), text
    assert browser.ask("document.querySelectorAll('.picked').length") == 1

    # What is drawn in the middle of the longest box is that box.
    _, kind, start, seconds = max(computed, key=lambda run: run[3])
    axes = browser.ask(SEEN)["time"]
    box = browser.ask("(() => { const { left, top, width } = document.querySelector('svg[data-lanes]').getBoundingClientRect();"
                      "const row = document.activeElement.getBoundingClientRect();"
                      "return { left, width, y: (row.top + row.bottom) / 2 } })()")
    x = box["left"] + place(axes, start + seconds / 2) * box["width"] / 1180
    assert browser.ask(f"document.elementFromPoint({x}, {box['y']}).dataset.kind") == kind
    browser.point(x, box["y"])
    browser.wait(f"{output}.startsWith('compute, planned: {kind} ')")
    browser.ask("document.querySelector('svg[data-row=memory]').focus()")
    browser.press("ArrowRight", 2)
    read = browser.wait("document.querySelector('figure.step .reading').textContent")
    assert re.match(r"planned at \S+( [mµ]s)?: [\d.]+ [KM]iB \(main_params [\d.]+ [KM]iB, ", read), read


def test_large_step_has_few_elements(own, browser):
    with own(agents=0, coordinator_flags=["--web-listen", "127.0.0.1:0"]) as cluster:
        model = {"llama": {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "layers": 40, "heads": 4, "kv_heads": 2}}
        long = cluster.submit(spec(name="long", model=model, train={"global_batch": 32}))
        runs = planned_runs(plan_of(cluster, long))
        assert len(runs) > 1500
        opened(cluster, browser, long)
        assert_boxes(browser.ask(SEEN), runs, "planned")
        assert browser.ask("document.querySelectorAll('figure.step *').length") < 150

        # No node lets a job have this variable, as is known once there is one.
        refused = cluster.submit(one_rank(name="refused", env=[{"name": "NCCL_TOPO_FILE", "value": "x"}]))
        cluster.start_agent("node-0")
        browser.open(f"{cluster.page()}#/jobs/{refused}")
        browser.wait("document.body.innerText.includes('Plan not available: ')")
        output = browser.text()
        assert "NCCL_TOPO_FILE" in output and "Memory plan per rank" in output, output
        assert browser.ask("document.querySelectorAll('figure.step').length") == 0
        assert not browser.faults, browser.faults
        cluster.cancel_all()


def test_slow_plan_requests_back_off(watched, browser):
    """Counts the requests of page.js, which refreshes once per second here; a new attempt resets the pause. A job that
    was not launched has no plan."""
    opened(watched, browser, watched.ended)
    requested = browser.ask("""(async () => {
      const { planTimeline } = await import("./steps.js");
      const clock = Date.now, asked = [[], []];
      let now = clock();
      Date.now = () => now;
      const tooLong = async () => { throw new Error("signal timed out"); };
      for (const [at, attempt] of [undefined, 1].entries())
        for (const begin = now; now < begin + 1500e3; now += 1000)
          await planTimeline(() => { asked[at].push((now - begin) / 1000); return tooLong(); }, { id: "long", attempt });
      Date.now = clock;
      return asked;
    })()""")
    assert requested == 2 * [[0, 30, 90, 210, 450, 930, 1410]]
