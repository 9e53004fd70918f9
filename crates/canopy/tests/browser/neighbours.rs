//! The console of a relay that stands among others: its neighbours on a map, and its comtrees.

use super::*;

/// Relay 1 of a star of three is the core; then relay 3 is killed.
#[test]
fn a_relay_draws_its_neighbours_and_comtrees() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    let mut lab = Server::start(&["lab", "net", "--shape", "star", "--relays", "3", "--json"]);
    let relays = lab.ready["relays"].clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let profile = tempfile::tempdir().unwrap();
        let page = driver.browser(profile.path().to_str().unwrap(), 1280, 900).await;
        page.goto(&format!("http://{}/", relays[0]["api"].as_str().unwrap())).await.unwrap();
        let drawn = "return document.querySelectorAll('#net-map circle:not(.root)').length === 3 \
                     && document.querySelectorAll('#net-map g.tree').length === 2 \
                     && document.querySelectorAll('#net-map g.core').length === 1 \
                     && document.getElementById('net-note').textContent === '2 links up'";
        until(&page, "two neighbours, and the links to them", drawn).await;
        let cells = "const [row] = document.querySelectorAll('#net-comtrees tbody tr'); \
                     return [...row.cells].map((cell) => cell.textContent).join(' | ') \
                       === '1 | core | relay-2 (child), relay-3 (child) | 0 | 0 | 0'";
        until(&page, "the comtree's place, branches and counts", cells).await;
        let wide = "return document.documentElement.scrollWidth <= window.innerWidth";
        until(&page, "no sideways scrolling", wide).await;
        keep_picture(&page, "neighbours").await;
        page.set_window_size(390, 844).await.unwrap();
        until(&page, "no sideways scrolling on a phone", wide).await;
        keep_picture(&page, "neighbours-phone").await;

        let pid = relays[2]["pid"].as_u64().unwrap();
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        assert!(killed.success());
        let down = "return document.querySelectorAll('#net-map g.down line').length > 0 \
                    && document.getElementById('net-note').textContent === 'Down: relay-3'";
        until(&page, "a link that is down", down).await;
        page.close().await.unwrap();
    });
    lab.end();
}
