"""The Runs page: states, verification, reports, comparison; live in a real Chromium."""

import json

import pytest
from starlette.testclient import TestClient

from tests.browser import DESKTOP, PHONE
from tests.report.runs import finished_run
from tests.studio.conftest import ADDRESS, Served, Studio
from uedp.accounting.certificate import CERTIFICATE, load_certificate
from uedp.accounting.proven import UserLevelProfile
from uedp.accounting.statement import rounded
from uedp.studio.server import create_app
from uedp.studio.settings import Settings
from uedp.training.run_dir import lock_run_dir

NOISE = UserLevelProfile(2.0, 0.05)  # quick to compute
HOSTILE = """a"'<img src=x onerror=alert(1)>&amp;{{7*7}} \u202eabc"""


@pytest.fixture
def folder(tmp_path):
    runs = tmp_path / "runs"
    finished_run(runs / "one", NOISE, rounds=12)
    finished_run(runs / "two", NOISE, rounds=20, rounds_spent=7, evaluate_every=2)
    return runs


@pytest.fixture
def studio(folder):
    settings = Settings(runs=(folder,))
    with TestClient(create_app(settings), ADDRESS, follow_redirects=False) as client:
        client.get(f"/?token={settings.token}")
        yield Studio(client, settings)


def test_all_runs_are_listed_with_their_state(studio):
    page = studio.get("/runs").text
    assert page.index(">one<") < page.index(">two<")
    assert ">finished<" in page
    assert ">stopped<" in page
    assert "12 of 12" in page
    assert "7 of 20" in page


def test_a_run_shows_its_certificate_in_words(studio, folder):
    page = studio.get("/runs/view", params={"run": "0/one"}).text
    certificate = load_certificate(folder / "one")
    assert certificate.statement.splitlines()[0] in page
    assert "<h3>Not protected</h3>" in page
    assert f">{rounded(certificate.epsilon)}<" in page


def verdict(studio, run):
    return studio.get("/runs/verify", params={"run": run}).json()


def test_verification(studio, folder):
    found = verdict(studio, "0/one")
    assert found["verdict"] == "consistent"
    assert any("uedp certificate verify --public-key" in line for line in found["open"])
    path = folder / "one" / CERTIFICATE
    path.write_text(path.read_text().replace('"epsilon":', '"epsilon": 0.01, "was":', 1))
    assert verdict(studio, "0/one")["verdict"] == "does not verify"
    path.unlink()
    assert verdict(studio, "0/one")["verdict"] == "does not verify"


def test_curves_are_sent_only_if_something_changed(studio, folder):
    first = studio.get("/runs/live", params={"run": "0/two"}).json()
    assert (first["state"], first["rounds"]) == ("stopped", "7 of 20")
    assert [chart["title"] for chart in first["charts"]] == [
        *("Perplexity", "Epsilon spent", "Users drawn in a round", "Clips reached")
    ]
    asked = {"run": "0/two", "seen": first["version"]}
    assert studio.get("/runs/live", params=asked).status_code == 204
    with (folder / "two" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 8, "users": 50}) + "\n")
    assert studio.get("/runs/live", params=asked).json()["rounds"] == "8 of 20"


def test_runs_are_compared(studio):
    page = studio.get("/runs/compare?run=0/one&run=0/two").text
    assert "<h1>2 runs side by side</h1>" in page
    assert page.count("<svg") >= 5
    assert '<th scope="row">rounds</th><td class="number">12</td><td class="number">20</td>' in page
    assert "sampling rate" not in page  # the same in both
    for few in ("", "?run=0/one", "?run=0/one&run=0/one"):
        assert studio.get(f"/runs/compare{few}").status_code == 400


def test_no_epsilon_is_compared_of_a_model_that_was_not_certified(studio, folder):
    finished_run(folder / "other", NOISE, rounds=12)
    (folder / "other" / "model.safetensors").write_bytes(b"weights of another run")
    epsilon = rounded(load_certificate(folder / "one").epsilon)
    both = studio.get("/runs/compare?run=0/one&run=0/other").text
    assert both.count(f">{epsilon}<") == 1
    assert both.count("not proven: ") == 1
    drawn = both[both.index("Epsilon spent") :]
    assert ">one<" in drawn[: drawn.index("</figure>")]
    assert ">other<" not in drawn[: drawn.index("</figure>")]


@pytest.mark.parametrize("page", ["view", "live", "verify", "report", "compare"])
@pytest.mark.parametrize("run", ["0/..", "0/../../etc", "0//etc", "5/one", "", "0/link"])
def test_folders_outside_are_forbidden(studio, folder, tmp_path, page, run):
    finished_run(tmp_path / "other", None, rounds=1, method="noiseless")
    (folder / "link").symlink_to(tmp_path / "other")
    answer = studio.get(
        f"/runs/{page}", params={"run": ["0/one", run] if page == "compare" else run}
    )
    assert answer.status_code == 403
    assert str(tmp_path) not in answer.text


def test_the_report_has_its_own_policy(studio):
    answer = studio.get("/runs/report", params={"run": "0/one"})
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy
    assert "script-src 'sha256-" in policy
    assert "connect-src" not in policy  # nothing may be asked, by default
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_ledger_of_the_corpus(original, folder):
    settings = Settings(original, (folder,))
    with TestClient(create_app(settings), ADDRESS) as client:
        client.get(f"/?token={settings.token}")
        page = Studio(client, settings).get("/runs").text
    assert "No run was made on this corpus" in page


def test_a_run_without_noise_has_no_guarantee(studio, folder):
    finished_run(folder / "plain", None, rounds=4, method="noiseless")
    assert "no guarantee: no noise" in studio.get("/runs").text
    assert verdict(studio, "0/plain")["verdict"] == "no guarantee"
    page = studio.get("/runs/view", params={"run": "0/plain"}).text
    assert "nothing to certify" in page
    assert studio.get("/runs/live", params={"run": "0/plain"}).json()["spent"] is None


def test_damaged_runs_are_shown_with_what_is_wrong(studio, folder):
    broken = folder / "broken"
    broken.mkdir()
    for name in ("run.json", "config.yaml", "metrics.jsonl", "ledger.jsonl", CERTIFICATE):
        (broken / name).write_text("<b>[" * 1000)
    assert ">broken<" in studio.get("/runs").text
    page = studio.get("/runs/view", params={"run": "0/broken"}).text
    assert "could not be read" in page
    assert "<b>[" not in page
    assert studio.get("/runs/live", params={"run": "0/broken"}).status_code == 200
    assert verdict(studio, "0/broken")["verdict"] == "does not verify"


# --- in Chromium ---------------------------------------------------------------------------------


def test_a_live_run_in_a_browser(browser, folder):
    metrics = folder / "two" / "metrics.jsonl"
    with Served(Settings(runs=(folder,))) as served, browser.page(DESKTOP) as w:
        page = w.page
        page.goto(served.url)
        page.click("text=Runs")
        page.wait_for_selector("text=consistent")
        assert w.accessibility_violations() == []
        with lock_run_dir(folder / "two"):
            page.click("text=two")
            page.wait_for_selector("figure svg")
            assert page.inner_text("#state") == "running"
            assert page.inner_text("#rounds") == "7 of 20"
            before = page.get_attribute("figure:nth-of-type(3) .line path", "d")
            with metrics.open("a") as file:
                for number in (8, 9):
                    file.write(json.dumps({"round": number, "users": 40 + number}) + "\n")
            page.wait_for_selector("#rounds:text('9 of 20')")
            after = page.get_attribute("figure:nth-of-type(3) .line path", "d")
            assert after.count("L") == before.count("L") + 2
        page.wait_for_selector("#state:text('stopped')")
        assert w.accessibility_violations() == []
        assert not w.overflows()


def test_hostile_names_and_content_are_text(browser, folder):
    hostile = finished_run(folder / HOSTILE.replace("/", ""), NOISE, rounds=12, run="run-x")
    config = hostile / "config.yaml"
    config.write_text(config.read_text().replace("name: ", f"name: {json.dumps(HOSTILE)} #"))
    with Served(Settings(runs=(folder,))) as served, browser.page(PHONE) as w:
        page = w.page
        page.goto(served.url)
        page.click("text=Runs")
        page.wait_for_selector("text=consistent")
        assert not w.overflows()
        for box in page.query_selector_all("input[name=run]"):
            box.check()
        page.click("text=Compare the chosen runs")
        page.wait_for_selector("figure svg")
        assert "<img src=x onerror" in page.inner_text("thead")
        assert w.accessibility_violations() == []
        assert not w.overflows()
        page.get_by_role("link", name=HOSTILE[:10]).click()
        page.wait_for_selector("figure svg")
        assert page.inner_text("h1") == HOSTILE
        page.wait_for_selector("text=Consistent.")
        assert not w.overflows()
        assert page.locator("main img").count() == 0
        with page.expect_popup() as opened:
            page.click("text=Open the internal report")
        report = opened.value
        report.wait_for_selector("main h1, header h1")
        assert report.locator("main img").count() == 0


def test_a_number_that_does_not_verify_is_not_shown(browser, folder):
    path = folder / "one" / CERTIFICATE
    certificate = json.loads(path.read_text())
    path.write_text(json.dumps(certificate | {"epsilon": 0.01, "statement": "Very private."}))
    with Served(Settings(runs=(folder,))) as served, browser.page() as w:
        page = w.page
        page.goto(served.url)
        page.click("text=Runs")
        page.wait_for_selector("text=does not verify")
        assert "0.01" not in page.inner_text("main")
        page.click("text=one")
        page.wait_for_selector("#verdict.bad")
        assert page.inner_text("#epsilon") == "not proven"
        assert not page.is_visible("#stated")
        page.wait_for_selector("#spent:text('not proven')")
        page.wait_for_selector("figure svg")
        assert "Epsilon spent" not in page.inner_text("#charts")
        page.goto(page.url.partition("/view")[0] + "/compare?run=0/one&run=0/two")
        assert "not proven: the certificate states another" in page.inner_text("table")
        assert "0.01" not in page.inner_text("table")
        (drawn,) = (f for f in page.query_selector_all("figure") if "Epsilon" in f.inner_text())
        assert drawn.query_selector_all(".line title")[0].text_content() == "two"
        assert len(drawn.query_selector_all(".line")) == 1


def test_a_link_in_a_run_is_not_followed(studio, folder, tmp_path):
    """Also one that was put there after the run was first shown."""
    assert studio.get("/runs/live", params={"run": "0/one"}).status_code == 200
    secret = tmp_path / "secret.json"
    secret.write_text('{"round": 1, "perplexity": 987654}\n')
    (folder / "one" / "metrics.jsonl").unlink()
    (folder / "one" / "metrics.jsonl").symlink_to(secret)
    for page in ("view", "live", "verify", "report"):
        answer = studio.get(f"/runs/{page}", params={"run": "0/one"})
        assert answer.status_code == 400
        assert "is a link" in answer.text
        assert "987" not in answer.text
    assert "is a link" in studio.get("/runs").text
