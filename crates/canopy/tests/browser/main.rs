//! The console in a real browser: headless Chromium, driven through chromedriver.

mod controller;
mod neighbours;
#[path = "../support/mod.rs"]
mod support;

use fantoccini::{Client, ClientBuilder, Locator};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::Server;

struct Driver {
    child: Child,
    url: String,
}

impl Driver {
    /// Starts chromedriver on a free port; `None` if there is none.
    fn start() -> Option<Driver> {
        let child = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = child.ok()?;
        let stdout = child.stdout.take()?;
        let port = BufReader::new(stdout).lines().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        })?;
        Some(Driver { child, url: format!("http://127.0.0.1:{port}") })
    }

    async fn browser(&self, profile: &str, width: u32, height: u32) -> Client {
        let profile = format!("--user-data-dir={profile}");
        let size = format!("--window-size={width},{height}");
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--force-dark-mode",
            &profile,
            &size,
        ];
        let wanted = serde_json::json!({
            "browserName": "chrome",
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let serde_json::Value::Object(wanted) = wanted else { unreachable!("an object") };
        let mut builder =
            ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
        builder.capabilities(wanted);
        builder.connect(&self.url).await.expect("chromedriver opens a browser")
    }
}

impl Drop for Driver {
    /// A test that has failed has closed no browser: whatever chromedriver has started ends with it.
    fn drop(&mut self) {
        let group = format!("kill -KILL -- -{}", self.child.id());
        let _ = Command::new("sh").args(["-c", &group]).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn number(page: &Client, id: &str) -> f64 {
    let script = format!("return Number(document.getElementById('{id}').dataset.value || 'NaN')");
    page.execute(&script, Vec::new()).await.unwrap().as_f64().unwrap_or(f64::NAN)
}

/// Waits until a script says true.
async fn until(page: &Client, what: &str, script: &str) {
    until_in(15, page, what, script).await;
}

async fn until_in(seconds: u32, page: &Client, what: &str, script: &str) {
    assert!(is_true_in(seconds, page, script).await, "never in {seconds} s: {what}");
}

/// Waits until a script says true, and says whether it does.
async fn is_true_in(seconds: u32, page: &Client, script: &str) -> bool {
    for _ in 0..20 * seconds {
        if page.execute(script, Vec::new()).await.unwrap() == serde_json::Value::Bool(true) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

async fn look(driver: &Driver, url: &str, name: &str, (width, height): (u32, u32)) {
    let profile = tempfile::tempdir().unwrap();
    let page = driver.browser(profile.path().to_str().unwrap(), width, height).await;
    page.goto(url).await.unwrap();
    until(&page, "live", "return document.body.dataset.state === 'live'").await;
    until(&page, "thirty frames", "return Number(document.body.dataset.frames) > 30").await;
    let receives = "return Number(document.getElementById('received-count').dataset.value) > 0";
    until(&page, "the viewer receives", receives).await;
    let levels = "const number = (id) => Number(document.getElementById(id).dataset.value); \
                  return document.body.dataset.levels === 'two' && number('level') === 1 \
                  && number('received-count') > number('detailed')";
    until(&page, "those who are far in less detail", levels).await;
    let rates = "return Number(document.getElementById('deliveries').dataset.value) > 100 \
                 && Number(document.getElementById('age-p99').dataset.value) > 0";
    until(&page, "deliveries and ages", rates).await;
    assert_eq!(number(&page, "avatars").await, 60.0);
    // Updates are judged only when they are too old to be on their way.
    let judged = "return document.getElementById('verdict').dataset.verdict !== 'none'";
    until(&page, "the first updates are judged", judged).await;
    let verdict = page.find(Locator::Css("#verdict")).await.unwrap();
    assert_eq!(verdict.attr("data-verdict").await.unwrap().as_deref(), Some("good"));
    let wide = "return document.documentElement.scrollWidth <= window.innerWidth";
    until(&page, "no sideways scrolling", wide).await;
    let viewer = number(&page, "viewer-id").await;
    page.find(Locator::XPath("//button[contains(., 'Next viewer')]"))
        .await
        .unwrap()
        .click()
        .await
        .unwrap();
    let script =
        format!("return Number(document.getElementById('viewer-id').dataset.value) !== {viewer}");
    until(&page, "another viewer", &script).await;
    until(&page, "it receives too", levels).await;
    let picture = page.screenshot().await.unwrap();
    assert!(picture.len() > 10_000, "a picture with something on it");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(folder.join(format!("console-{name}.png")), picture).unwrap();
    page.close().await.unwrap();
}

#[test]
fn the_console_shows_a_live_crowd() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    let demo = Server::start(&["demo", "--json", "--walkers", "60", "--relays", "1"]);
    assert!(demo.address("relay").ip().is_loopback());
    let url = demo.ready["console"].as_str().unwrap().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        look(&driver, &url, "desk", (1280, 860)).await;
        look(&driver, &url, "phone", (390, 844)).await;
    });
}

/// What is missing then depends on the host's load, and is not looked at here.
#[test]
fn the_console_draws_relays_and_cuts_a_link() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    let demo = Server::start(&["demo", "--json", "--walkers", "20", "--threads", "1"]);
    let url = demo.ready["console"].as_str().unwrap().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let profile = tempfile::tempdir().unwrap();
        let page = driver.browser(profile.path().to_str().unwrap(), 1280, 1000).await;
        page.goto(&url).await.unwrap();
        let up = "return document.querySelectorAll('#net-map circle:not(.root)').length === 5 \
                  && document.querySelectorAll('#net-map .down').length === 0";
        until(&page, "five relays, all up", up).await;
        let carried = "return [...document.querySelectorAll('#links-rows li')].filter((row) => \
                       row.querySelector('[data-comtree]')?.getBoundingClientRect().width > 1 \
                       && Number(row.dataset.bits) > 1000).length === 4";
        until(&page, "what each link carries of the comtree", carried).await;
        let button = page.find(Locator::Css("#net-cut")).await.unwrap();
        button.click().await.unwrap();
        let cut = "return document.querySelectorAll('#net-map .down').length > 0 \
                   && document.getElementById('net-cut').textContent === 'Mend'";
        until(&page, "a link that is cut", cut).await;
        let wide = "return document.documentElement.scrollWidth <= window.innerWidth";
        until(&page, "no sideways scrolling", wide).await;
        let picture = page.screenshot().await.unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        std::fs::write(folder.join("console-relays.png"), picture).unwrap();
        button.click().await.unwrap();
        until(&page, "all up again", up).await;
        page.close().await.unwrap();
    });
}

/// Does something to one of the page's controls, and says so as a person's deed would.
async fn set(page: &Client, id: &str, deed: &str) {
    let script = format!(
        "const it = document.getElementById('{id}'); it.{deed}; \
         it.dispatchEvent(new Event('input')); it.dispatchEvent(new Event('change'));"
    );
    page.execute(&script, Vec::new()).await.unwrap();
}

async fn keep_picture(page: &Client, name: &str) {
    let picture = page.screenshot().await.unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
}

#[test]
fn the_viewer_gets_a_budget_and_everything_again() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    // Enough walkers that the least budget bears less than half of any viewer's surroundings.
    let demo = Server::start(&["demo", "--json", "--walkers", "100", "--relays", "1"]);
    let url = demo.ready["console"].as_str().unwrap().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let profile = tempfile::tempdir().unwrap();
        let page = driver.browser(profile.path().to_str().unwrap(), 1280, 900).await;
        page.goto(&url).await.unwrap();
        let receives = "return Number(document.getElementById('received-count').dataset.value) > 0";
        until(&page, "the viewer receives", receives).await;
        let limit_is = |limit: &str| {
            format!("return document.getElementById('budget').dataset.limit === '{limit}'")
        };
        until(&page, "no budget at first", &limit_is("")).await;
        // The least budget bears some fifty updates a second. Few come at first, on a busy machine.
        let many = "return Number(document.getElementById('viewer-rate').dataset.value) > 140";
        until_in(40, &page, "many updates", many).await;
        let bands = "[...document.querySelectorAll('#budget-rates > div')] \
                     .map((band) => Number(band.dataset.value))";
        let all_are_there = format!("return {bands}.every((rate) => rate > 0)");
        until_in(40, &page, "others near and far", &all_are_there).await;
        let before = page.execute(&format!("return {bands}"), vec![]).await.unwrap();
        set(&page, "budget-everything", "checked = false").await;
        set(&page, "budget-bits", "value = 0").await;
        until(&page, "the least budget", &limit_is("50000")).await;
        let fewer = "return Number(document.getElementById('viewer-rate').dataset.value) < 70";
        until(&page, "less than half of the updates", fewer).await;
        // The floor of all who are in sight takes most of the least budget; this one has room for who is near.
        set(&page, "budget-bits", "value = 25").await;
        until(&page, "a budget between", &limit_is("88914")).await;
        let by_distance = format!(
            "const [before, rates] = [{before}, {bands}], far = rates.length - 1; \
             return rates[0] > 0.8 * before[0] && rates[far] > 0 && rates[far] < 0.8 * before[far]"
        );
        // They walk, and where many stand around the viewer there is less for each.
        until_in(40, &page, "the far slow down and the near stay", &by_distance).await;
        keep_picture(&page, "console-limited").await;
        set(&page, "budget-bits", "value = 100").await;
        until(&page, "the largest budget", &limit_is("500000")).await;
        let viewer = number(&page, "viewer-id").await;
        page.find(Locator::Css("#next-viewer")).await.unwrap().click().await.unwrap();
        let other = format!(
            "return Number(document.getElementById('viewer-id').dataset.value) !== {viewer}"
        );
        until(&page, "another viewer", &other).await;
        until(&page, "which has it too", &limit_is("500000")).await;
        set(&page, "budget-everything", "checked = true").await;
        until(&page, "everything again", &limit_is("")).await;
        let wide = "return document.documentElement.scrollWidth <= window.innerWidth";
        until(&page, "no sideways scrolling", wide).await;
        keep_picture(&page, "console-budget").await;
        let verdict = page.find(Locator::Css("#verdict")).await.unwrap();
        assert_ne!(verdict.attr("data-verdict").await.unwrap().as_deref(), Some("bad"));
        page.close().await.unwrap();
    });
}

/// A viewer in the middle of those whom it hears the less the farther away they are.
#[test]
fn who_comes_less_often_looks_like_it() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    // Where the slider stands at first.
    let bits = (50_000.0 * 10_f64.powf(0.5)).round();
    let others = (1..25).map(|other| {
        let (angle, away) = (f64::from(other) * 2.4, f64::from(other).sqrt() * 1.6);
        (other, 10.0 + away * angle.cos(), 10.0 + away * angle.sin(), away)
    });
    let avatars = others.clone().map(|(other, x, y, _)| (other, x, y)).chain([(0, 10.0, 10.0)]);
    let received = others.map(|(other, x, y, away)| {
        let rate = (10.0 / away.powi(2)).clamp(0.5, 10.0);
        (other, x - 0.3 / rate, y, 20, u8::from(away < 4.0), 500.0 / rate, rate)
    });
    let frame = serde_json::json!({
        "avatars": avatars.collect::<Vec<_>>(), "crowd": null, "everyone_bits": bits as u64,
        "viewer": {
            "id": 0, "x": 10, "y": 10, "level": 1, "cells": [], "limit_bits": bits as u64,
            "received": received.collect::<Vec<_>>(),
        },
    });
    let url = format!("http://{}/", console_that_tells(frame));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let profile = tempfile::tempdir().unwrap();
        let page = driver.browser(profile.path().to_str().unwrap(), 1280, 860).await;
        page.goto(&url).await.unwrap();
        until(&page, "frames", "return Number(document.body.dataset.frames) > 20").await;
        let switch = "return !document.getElementById('budget-everything').checked";
        until(&page, "the switch as the demo says", switch).await;
        let falls = "const rates = [...document.querySelectorAll('#budget-rates > div')] \
                     .map((band) => Number(band.dataset.value)); \
                     return rates.length === 4 && rates.every((rate, at) => rate > 0 && !(rate >= rates[at - 1]))";
        until(&page, "rates that fall with distance", falls).await;
        let says = "return document.getElementById('budget-text').textContent.includes('kbit/s')";
        until(&page, "what the budget is", says).await;
        keep_picture(&page, "console-rates").await;
        page.close().await.unwrap();
    });
}

/// One link carries all that it is offered, of eight comtrees; the other is shaped, and one is down.
#[test]
fn links_show_their_load_by_comtree() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    let load = |comtree: Option<u32>, offered: u32, out: u32, allowed: u32| {
        serde_json::json!({
            "comtree": comtree, "bits_offered": offered, "bits_out": out, "bits_allowed": allowed,
        })
    };
    let named = (1..=6).map(|comtree| load(Some(comtree), comtree * 100_000, comtree * 100_000, 0));
    let harbour: Vec<_> = named.chain([load(None, 200_000, 200_000, 0)]).collect();
    let quay =
        [load(Some(2), 400_000, 400_000, 600_000), load(Some(5), 4_000_000, 1_600_000, 1_600_000)];
    let frame = serde_json::json!({
        "avatars": [], "viewer": null, "crowd": null,
        "links": [
            { "name": "harbour", "up": true, "comtrees": harbour },
            { "name": "quay", "up": true, "comtrees": quay },
            { "name": "tower", "up": false, "comtrees": [load(Some(2), 900, 900, 0)] },
        ],
    });
    let url = format!("http://{}/", console_that_tells(frame));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let profile = tempfile::tempdir().unwrap();
        let page = driver.browser(profile.path().to_str().unwrap(), 1280, 860).await;
        page.goto(&url).await.unwrap();
        let rows = "return document.querySelectorAll('#links-rows li').length === 3";
        until(&page, "three links", rows).await;
        // The widths are shares of the largest load, which is 4.4 Mbit/s.
        for (link, comtree, waits, share) in [
            (1, "1", false, 0.1 / 4.4),
            (1, "6", false, 0.6 / 4.4),
            (1, "other", false, 0.2 / 4.4),
            (2, "2", false, 0.4 / 4.4),
            (2, "5", false, 1.6 / 4.4),
            (2, "5", true, 2.4 / 4.4),
        ] {
            let of_class = if waits { ".waits" } else { ":not(.waits)" };
            let script = format!(
                "const bar = document.querySelector('#links-rows li:nth-child({link}) .links-bar'); \
                 const piece = bar.querySelector('[data-comtree=\"{comtree}\"]{of_class}'); \
                 const width = (of) => of.getBoundingClientRect().width; \
                 return Math.abs(width(piece) / width(bar) - {share}) < 0.01"
            );
            until(&page, &format!("link {link}, comtree {comtree}"), &script).await;
        }
        for (link, says) in [(1, "2.30 Mbit/s"), (2, "2.00 of 4.40 Mbit/s"), (3, "down")] {
            let script = format!(
                "return document.querySelector('#links-rows li:nth-child({link}) b').textContent === '{says}'"
            );
            until(&page, says, &script).await;
        }
        let empty = "return !document.querySelector('#links-rows li:nth-child(3) .links-bar').firstChild";
        until(&page, "nothing of what is down", empty).await;
        let key = "return document.querySelectorAll('#links-key li').length === 7";
        until(&page, "six comtrees and the others", key).await;
        let colours = "return new Set([...document.querySelectorAll('#links-key i')] \
                       .map((one) => getComputedStyle(one).backgroundColor)).size === 7";
        until(&page, "each with a colour of its own", colours).await;
        keep_picture(&page, "console-links").await;
        page.close().await.unwrap();
    });
}

/// A console that tells its pages always the same: the page without a relay behind it.
fn console_that_tells(frame: serde_json::Value) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let frame = frame.clone();
            // A page that goes away ends its stream.
            std::thread::spawn(move || drop(answer(stream, frame)));
        }
    });
    address
}

fn answer(mut stream: TcpStream, mut frame: serde_json::Value) -> std::io::Result<()> {
    let mut request = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut request)?;
    let path = request.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/");
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: ")?;
    if path != "/events" {
        let name = if path == "/" { "index.html" } else { path.trim_start_matches('/') };
        let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
        let media = [(".js", "text/javascript"), (".css", "text/css"), ("", "text/html")];
        let media =
            media.iter().find(|(end, _)| name.ends_with(end)).map_or("", |(_, media)| media);
        write!(stream, "{media}\r\n\r\n{}", std::fs::read_to_string(web.join(name))?)?;
        return Ok(());
    }
    let hello = serde_json::json!({
        "title": "demo", "relay": "127.0.0.1:4040", "mode": "immediate", "tick_ms": 0,
        "has_map": true, "bounds": { "min": [0, 0], "max": [20, 20] },
        "cell": 2, "radius": 8, "near": 4, "coarse_every": 5, "source": "nobody",
    });
    write!(stream, "text/event-stream\r\n\r\nevent: hello\ndata: {hello}\n\n")?;
    for tenth in 0.. {
        frame["t"] = serde_json::json!(f64::from(tenth) / 10.0);
        write!(stream, "event: frame\ndata: {frame}\n\n")?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[test]
fn the_verdict_turns_when_ages_do() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (pace, missing, head) in [
        ("on_time", 0, "Every delivery accounted for"),
        ("late", 0, "Nearly overloaded: some updates come late"),
        ("overloaded", 0, "Overloaded: updates come too late"),
        ("overloaded", 3, "3 deliveries missing, 3 out of order"),
    ] {
        let crowd = serde_json::json!({
            "age_ms": { "p50": 270.0, "p99": 611.0 }, "pace": pace, "missing": missing,
            "duplicates": 0, "unexpected": 0, "out_of_order": missing, "updates_published": 1000,
            "deliveries": 9000, "deliveries_expected": 9000 + missing,
        });
        let frame = serde_json::json!({ "avatars": [], "viewer": null, "crowd": crowd });
        let url = format!("http://{}/", console_that_tells(frame));
        runtime.block_on(async {
            let profile = tempfile::tempdir().unwrap();
            let page = driver.browser(profile.path().to_str().unwrap(), 1280, 860).await;
            page.goto(&url).await.unwrap();
            let says =
                format!("return document.getElementById('verdict-head').textContent === '{head}'");
            until(&page, head, &says).await;
            let colour = "return getComputedStyle(document.getElementById('verdict-head')).color";
            let colour = page.execute(colour, Vec::new()).await.unwrap();
            let ink = page.execute("return getComputedStyle(document.body).color", Vec::new());
            let is_plain = colour == ink.await.unwrap();
            assert_eq!(is_plain, pace == "on_time", "{head}: {colour}");
            let picture = page.screenshot().await.unwrap();
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
            std::fs::write(folder.join(format!("verdict-{pace}-{missing}.png")), picture).unwrap();
            page.close().await.unwrap();
        });
    }
}
