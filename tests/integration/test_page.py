"""Tests of the web UI (--web-listen) in a real browser, as described in docs/deploy.md, "Web UI". FSDPD_PICTURES names
an output directory for its pictures: docs/img has them."""

import json
import os
import pathlib
import re
import ssl
import urllib.request

import pytest

from harness.browser import PROGRAM, Browser
from harness.cluster import Cluster
from harness.etcd import free_ports
from harness.security import Security, certificates
from harness.specs import ENDLESS, corpus, one_rank, spec
from harness.stubs import coordinator as api

pytestmark = pytest.mark.skipif(not PROGRAM, reason="chromium is not installed: deploy/setup does")

HOSTILE = """<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>"""
LINK = "main tbody a"
# Of each text on the page that has too little contrast: what it is, its colour and what is behind it.
PALE = """(() => {
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => numbers(color).slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (numbers(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("body *")].filter(element => element.checkVisibility() &&
    [...element.childNodes].some(child => child.nodeType === Node.TEXT_NODE && child.nodeValue.trim())).map(element => {
    const style = getComputedStyle(element), color = element instanceof SVGElement ? style.fill : style.color;
    const [low, high] = [light(color), light(behind(element))].sort((a, b) => a - b);
    return [element.textContent.slice(0, 40), color, behind(element), (high + 0.05) / (low + 0.05)];
  }).filter(each => each[3] < 4.5);
})()"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A running job, one that waits for it, one that was cancelled with HTML in its reason, and a cordoned node."""
    with Cluster(tmp_path_factory.mktemp("watched"), agents=1, slots=1,
                 coordinator_flags=["--web-listen", "127.0.0.1:0"]) as cluster:
        running = cluster.submit(one_rank(name="runs", steps=ENDLESS))
        waiting = cluster.submit(one_rank(name="waits"))
        gone = cluster.submit(one_rank(name="gone"))
        cluster.api().CancelJob(api.CancelJobRequest(id=gone, reason=HOSTILE), timeout=60)
        cluster.wait_state(gone, "CANCELLED")
        cluster.wait_step(running, 2)
        cluster.api().CordonNode(api.CordonNodeRequest(node="node-0", reason=HOSTILE), timeout=60)
        cluster.running, cluster.waiting, cluster.gone = running, waiting, gone
        yield cluster
        cluster.cancel_all()


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path / "browser") as driven:
        yield driven


def test_keyboard_navigates_from_job_to_curves(watched, browser):
    url = watched.page()
    browser.open(url)
    row = browser.wait(f"[...document.querySelectorAll('{LINK}')].find(a => a.textContent === '{watched.running}')"
                       "?.closest('tr').innerText")
    first, now = watched.job(watched.running).first_loss, float(row.split("\t")[3])
    assert "running" in row and re.search(r"\d+ of 10,000,000", row) and abs(now - first) < 2, row
    waiting = browser.ask(f"document.querySelector('{LINK}[href*=waits]').closest('tr').innerText")
    assert "queued" in waiting and "Queue position 1" in waiting and "uncordon" in waiting, waiting

    for _ in range(30):
        browser.press("Tab")
        if browser.ask("document.activeElement.textContent") == watched.running:
            break
    assert browser.ask("document.activeElement.matches(':focus-visible')"), "the job cannot be reached, or not seen to be"
    browser.press("Enter")
    browser.wait("document.querySelectorAll('.charts svg[tabindex]').length === 4")
    assert browser.ask("document.title").startswith(watched.running)
    browser.ask("document.querySelector('[data-chart=Loss]').focus()")
    # It is refreshed meanwhile, and keeps the focus.
    browser.wait("document.querySelector('[data-chart=Loss] polyline').points.length >= 3")
    steps = browser.ask("document.querySelector('[data-chart=Loss]').dataset.steps").split()
    browser.press("ArrowLeft", 2)
    read = browser.wait("document.activeElement.closest('figure')?.querySelector('.reading').textContent")
    assert int(steps[0]) <= 1 + int(steps[-1]) // 1000, "what was made before the page was opened is there"
    assert re.fullmatch(r"step \d+: loss \d\.\d+", read) and int(read.split(":")[0][5:]) >= int(steps[0]), read

    output = browser.text()
    for part in ("fsdpd 0.", "planned peak", "Lanes of step", "main_params", "Rank 0 measured", "its rank runs", "admitted"):
        assert part in output, (part, output)
    assert not browser.faults, browser.faults
    assert browser.requests and all(request.startswith(url) for request in browser.requests), browser.requests


def test_slow_step_does_not_flatten_curve(watched, browser):
    browser.open(watched.page())
    drawn = browser.ask("""(async () => {
      const { chart } = await import("./chart.js");
      const points = Array.from({ length: 100 }, (_, at) => ({ step: at + 1, seconds: at === 41 ? 100 : 1 + at / 1000 }));
      const figure = chart("Time of a step", points, [{ name: "step", color: "c1", value: point => point.seconds }], String);
      return { clipped: [...figure.querySelectorAll("[data-clipped]")].map(each => each.dataset.clipped),
        ticks: [...figure.querySelectorAll("[data-step]")].map(each => Number(each.dataset.step)), said: figure.textContent,
        heights: figure.querySelector("polyline").getAttribute("points").split(" ").map(each => Number(each.split(",")[1])) };
    })()""")
    assert drawn["clipped"] == ["42"] and "max 100" in drawn["said"], drawn
    assert drawn["ticks"] == [50, 100] or len(drawn["ticks"]) > 2 and all(tick % 10 == 0 for tick in drawn["ticks"]), drawn
    usual = sorted(drawn["heights"])[-1]
    assert usual < 130, "an ordinary step is well above the ground"


def test_older_dates_show_day(watched, browser):
    browser.open(watched.page())
    reported = browser.ask("import('./numbers.js').then(({ date }) => [date(1e6 * Date.now()), date(86400e9)])")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", reported[0]) and re.fullmatch(r"1970-01-0[12] \d\d:\d\d:\d\d", reported[1]), reported


def test_cordoned_lost_node_shows_unconfirmed_jobs(watched, browser):
    browser.open(watched.page())
    rows = browser.ask("""import("./nodes.js").then(({ draw }) => {
      const page = document.createElement("div");
      page.append(...draw({ nodes: [
        { name: "gone", cordon: { reason: "a fan" }, unconfirmed_jobs: ["j-1", "j-2"] },
        { name: "silent", not_ready: true, cordon: { drain: {} } },
        { name: "empty", connected: true, cordon: { drain: { empty_unix_nanos: "5" } } },
        { name: "closed", connected: true, cordon: {}, in_preflight: true },
        { name: "open", connected: true }] }).flat());
      return [...page.querySelectorAll("tbody tr")].map(row => [...row.children].map(cell => cell.textContent));
    })""")
    shown = {row[0]: row[1:] for row in rows}
    assert {name: row[0] for name, row in shown.items()} == {
        "gone": "lost, cordoned", "silent": "not-ready, draining", "empty": "drained", "closed": "cordoned", "open": "ready"}
    assert "lost with ranks of j-1, j-2, which may still run" in shown["gone"][-1]


def test_failed_job_without_steps_shows_reason(watched, browser):
    browser.open(f"{watched.page()}#/jobs/{watched.gone}")
    assert browser.wait("document.body.innerText.includes('No steps completed: ')")
    assert browser.ask("document.querySelectorAll('.charts, .charts figure').length") == 0
    browser.open(f"{watched.page()}#/jobs/{watched.waiting}")
    browser.wait("document.body.innerText.includes('No steps yet.')")
    assert browser.ask("document.querySelectorAll('.charts').length") == 0


def test_user_text_is_escaped(watched, browser):
    url = watched.page()
    browser.open(f"{url}#/jobs/{watched.gone}")
    browser.wait("document.body.innerText.includes('<img src=x onerror=')")
    browser.open(f"{url}#/nodes")
    browser.wait("document.querySelector('h1').textContent === 'Nodes' && document.body.innerText.includes('<img src=x ')")
    assert browser.ask("document.querySelectorAll('img, main script').length") == 0
    assert "owned" not in browser.ask("document.title") and not browser.faults
    # In an address too.
    browser.open(f"{url}#/jobs/%3Cimg%20src=x%20onerror=alert(1)%3E")
    browser.wait("document.querySelector('[role=alert]')?.textContent.includes('<img')")
    assert browser.ask("document.querySelectorAll('img').length") == 0


def test_malformed_url_is_not_found(watched, browser):
    url = watched.page()
    browser.open(f"{url}#/jobs/%E0%A4%A")
    browser.wait("document.querySelector('[role=alert]')?.textContent.includes('%E0%A4%A')")
    browser.ask("document.querySelector('header nav a').click()")
    browser.wait(f"document.querySelectorAll('{LINK}').length === 3")
    assert not browser.faults


def test_light_and_dark_have_contrast(watched, browser, tmp_path):
    pictures = {}
    for page, title in (("", "Jobs"), (f"#/jobs/{watched.running}", watched.running), ("#/nodes", "Nodes")):
        browser.open(watched.page() + page)
        browser.wait(f"document.querySelector('h1').textContent.startsWith('{title}')")
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            assert browser.ask(PALE) == [], (page, scheme)
            browser.picture(tmp_path / "page.png")
            pictures[page, scheme] = (tmp_path / "page.png").read_bytes()
    browser.ask("document.documentElement.style.setProperty('--soft', '#777')")
    assert browser.ask(PALE), "the measure finds what is pale"
    assert len(set(pictures.values())) == len(pictures)
    assert all(len(picture) > 15_000 for picture in pictures.values()), "an almost empty picture"


@pytest.mark.nightly
def test_job_matches_pictures_in_docs(own, browser, tmp_path):
    with own(agents=1, coordinator_flags=["--web-listen", "127.0.0.1:0"]) as cluster:
        text = corpus(tmp_path / "corpus.txt", tokens=20000)
        job_id = cluster.submit(spec(
            steps=ENDLESS, name="tiny-llama", model={"llama": None, "preset": "tiny"}, optimizer={"adamw": {"lr": 3e-3}, "clip_norm": 1.0},
            data={"synthetic": None, "tokens": [{"path": str(text), "type": "u8"}], "sequence_length": 64},
            train={"micro_batch": 4, "global_batch": 16}, resources={"nodes": 1, "ranks_per_node": 2}))
        cluster.wait_step(job_id, 250)
        browser.resize(1240, 1560)
        browser.open(f"{cluster.page()}#/jobs/{job_id}")
        browser.wait("document.querySelector('[data-chart=Loss] polyline').points.length >= 100")
        browser.wait("document.querySelectorAll('g[data-row$=planned]').length === 3 && "
                     "document.querySelectorAll('g[data-row$=measured]').length === 3")
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            kept = pathlib.Path(os.environ.get("FSDPD_PICTURES", tmp_path)).resolve() / f"page-{scheme}.png"
            browser.picture(kept)
            assert kept.stat().st_size > 30_000, "an almost empty picture"
        assert not browser.faults
        cluster.cancel(job_id)


def test_url_keeps_job_filter(watched, browser):
    url = watched.page()
    browser.open(url)
    browser.wait(f"document.querySelectorAll('{LINK}').length === 3")
    browser.ask("document.querySelector('[data-parameter=name]').focus()")
    browser.type("wai")
    assert browser.wait(f"document.querySelectorAll('{LINK}').length === 1 && location.hash") == "#/?name=wai"
    assert browser.ask("document.activeElement.value") == "wai", "what is typed stays, and so does the focus"
    browser.open(f"{url}#/?show=ended")
    browser.wait(f"document.querySelectorAll('{LINK}').length === 1 && document.querySelector('{LINK}[href*=gone]')")
    assert browser.ask("document.querySelector('select').selectedOptions[0].text") == "ended"


def test_older_jobs_are_on_next_page(own, browser):
    with own(agents=0, coordinator_flags=["--web-listen", "127.0.0.1:0"]) as cluster:
        oldest = cluster.submit(one_rank(name="oldest"))
        for number in range(50):
            cluster.submit(one_rank(name=f"job-{number}"))
        browser.open(cluster.page())
        browser.wait(f"document.querySelectorAll('{LINK}').length === 50")
        browser.ask("document.querySelector('.pages a').click()")
        assert browser.wait(f"document.querySelectorAll('{LINK}').length === 1 && "
                            f"document.querySelector('{LINK}').textContent") == oldest
        assert browser.ask("document.querySelector('.pages').innerText.trim()") == "Newest"
        browser.ask("document.querySelector('.pages a').click()")
        browser.wait(f"document.querySelectorAll('{LINK}').length === 50")


def test_lost_connection_is_shown_until_reconnect(own, browser):
    port, = free_ports(1)
    with own(agents=0, coordinator_flags=["--web-listen", f"127.0.0.1:{port}"]) as cluster:
        cluster.submit(one_rank(name="kept"))
        browser.open(cluster.page())
        browser.wait(f"document.querySelector('{LINK}')")
        address = cluster.address
        cluster.coordinator.kill()
        browser.wait("/Connection lost since [\\d:]+/.test(document.getElementById('connection').textContent)")
        assert "kept" in browser.text(), "what was known stays"
        cluster.start_coordinator(listen=address)
        browser.wait("document.getElementById('connection').textContent === ''")


def test_requires_token_over_tls(own, browser, tmp_path):
    security = Security(tmp_path / "security")
    security.more_flags = ["--web-listen", "127.0.0.1:0"]
    with own(agents=0, security=security) as cluster:
        url = cluster.page()
        assert url.startswith("https://")
        browser.trust_any_certificate()
        browser.open(url)
        browser.wait("document.activeElement.id === 'token'")
        assert not browser.ask("document.querySelector('[role=alert]')"), "nobody has shown a wrong one yet"
        browser.type("fsdpd_wrong")
        browser.press("Enter")
        assert "unknown token" in browser.wait("document.querySelector('[role=alert]')?.textContent")
        browser.type(security.token("vera"))
        browser.press("Enter")
        browser.wait("document.body.innerText.includes('No matching jobs')")
        job_id = cluster.submit(one_rank(name="seen"))
        browser.open(f"{url}#/jobs/{job_id}")
        browser.wait("document.body.innerText.includes('Plan not available: PlanJob requires a submitter (vera is a viewer)')")
        assert "main_params" in browser.text(), "a viewer sees all else of a job"
        assert browser.ask("localStorage.length + document.cookie") == "0"
        assert security.token("vera") not in " ".join(browser.requests)
        browser.ask("document.getElementById('forget').click()")
        browser.wait("document.getElementById('token')")
        record, *_ = [each for each in map(json.loads, security.audit.read_text().splitlines())
                   if each["outcome"] == "UNAUTHENTICATED"]
        assert record["method"] == "ListJobs" and record["from"].startswith("ipv4:127.0.0.1:"), record

        # New connections get the new certificate.
        port = int(url.rstrip("/").rsplit(":", 1)[1])
        before = ssl.get_server_certificate(("127.0.0.1", port))
        certificates(security.pki, "coordinator", "localhost", "127.0.0.1")
        assert ssl.get_server_certificate(("127.0.0.1", port)) != before
        trust = ssl.create_default_context(cafile=security.pki / "ca.crt")
        request = urllib.request.Request(f"{url}api/ListNodes", headers={"Authorization": f"Bearer {security.token('ada')}"})
        with urllib.request.urlopen(request, timeout=60, context=trust) as answer:
            assert set(json.load(answer)) == {"unix_nanos"}, "no node"
