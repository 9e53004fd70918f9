//! The controller's console: relays, links, and the trees of worlds on them.

use super::*;
use serde_json::{Value, json};
use support::run;

/// A lab of three relays under a controller; the address of its API, its folder, and its secret.
fn lab_of_three() -> (Server, String, String, String) {
    let lab = Server::start(&["lab", "net", "--controller", "--relays", "3", "--json"]);
    let controller = &lab.ready["controller"];
    let [api, folder] = ["api", "dir"].map(|key| controller[key].as_str().unwrap().to_owned());
    let secret = std::fs::read_to_string(Path::new(&folder).join("api.secret")).unwrap();
    (lab, format!("http://{api}/"), folder, secret.trim().to_owned())
}

/// A lab of three relays, of which one is killed: its links are down on the map, and the page says why.
#[test]
fn a_controller_has_a_console() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    let (mut lab, url, _, secret) = lab_of_three();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let profile = tempfile::tempdir().unwrap();
        let page = driver.browser(profile.path().to_str().unwrap(), 1280, 900).await;
        page.goto(&url).await.unwrap();
        let asks = "return !document.getElementById('ask').hidden \
                    && document.getElementById('main').hidden";
        until(&page, "it asks for the secret", asks).await;
        let field = page.find(Locator::Css("#secret")).await.unwrap();
        field.send_keys("something else\n").await.unwrap();
        let refused = "return document.getElementById('ask-why').textContent !== ''";
        until(&page, "it says that this is not the secret", refused).await;
        page.goto(&format!("{url}#{}", secret)).await.unwrap();
        page.refresh().await.unwrap();
        let up = "return document.querySelectorAll('#net-map circle:not(.root)').length === 3 \
                  && document.querySelectorAll('#net-map .down').length === 0 \
                  && document.querySelectorAll('#links tr').length === 3 \
                  && document.getElementById('world').value === 'main'";
        until(&page, "three relays and their links", up).await;
        let sent = "return [...document.querySelectorAll('#links tr')] \
                    .every((row) => /^[0-9.]+ \\/ [0-9.]+$/.test(row.cells[3].textContent))";
        until(&page, "what both ends of each link send over it", sent).await;
        keep_picture(&page, "controller-loads").await;
        let pid = lab.ready["relays"][2]["pid"].as_u64().unwrap();
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        assert!(killed.success());
        let gone = "return document.querySelectorAll('#net-map line').length > 0 \
                    && document.querySelectorAll('#net-map g.down').length === 3 \
                    && document.getElementById('happenings').textContent.includes('relay-3 is lost')";
        until(&page, "a relay that is lost, and its two links", gone).await;
        keep_picture(&page, "controller").await;
        page.close().await.unwrap();
    });
    lab.end();
}

/// Asks the API as the page does, with the page's secret.
async fn ask(page: &Client, method: &str, path: &str, body: &Value) -> Value {
    let script = "const [method, path, body, done] = arguments; \
                  const headers = { Authorization: `Bearer ${sessionStorage.getItem('secret')}` }; \
                  fetch(path, { method, headers, body: body ?? undefined }) \
                    .then((answer) => answer.json()).then(done, (error) => done(String(error)))";
    let body = if body.is_null() { Value::Null } else { json!(body.to_string()) };
    page.execute_async(script, vec![json!(method), json!(path), body]).await.unwrap()
}

/// Gives the world `main` another rule for its core, by the command that people use.
fn set_core(folder: &str, rule: &str) {
    let set = run(&["world", "set", "main", "--core", rule, "--controller-dir", folder]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
}

/// By the world's tree: the numbers of the links that lead up, and of those that the mesh has beside them.
fn links_of(world: &Value) -> [Vec<u64>; 2] {
    let hops = || world["comtrees"][0]["tree"].as_array().unwrap().iter();
    let peers = hops().filter_map(|hop| hop["peers"].as_array()).flatten();
    let mesh = peers.filter_map(|peer| peer["link"].as_u64()).collect();
    let mut up: Vec<u64> = hops().filter_map(|hop| hop["link"].as_u64()).collect();
    up.sort_unstable();
    [up, mesh]
}

/// Removes the link that the mesh has beside the tree, if it has one.
async fn remove_mesh_link(page: &Client) {
    let [_, mesh] = links_of(&ask(page, "GET", "v1/worlds/main", &Value::Null).await);
    if let Some(link) = mesh.first() {
        ask(page, "DELETE", &format!("v1/links/{link}"), &Value::Null).await;
    }
}

/// The numbers of the links that are drawn in one way: the map has them in the order of the table.
async fn drawn(page: &Client, class: &str) -> Vec<u64> {
    let script = format!(
        "const drawn = [...document.querySelectorAll('#net-map g')]; \
         return [...document.querySelectorAll('#links tr')].map((row) => Number(row.cells[0].textContent)) \
           .filter((_, place) => drawn[place].classList.contains('{class}'))"
    );
    serde_json::from_value(page.execute(&script, Vec::new()).await.unwrap()).unwrap()
}

/// A member at each of three relays that are all joined: the tree has two of the links, and the mesh the third.
#[test]
fn a_mesh_is_drawn_beside_the_tree() {
    let Some(driver) = Driver::start() else {
        println!("skipped: no chromedriver here; install Debian's chromium and chromium-driver");
        return;
    };
    let (mut lab, url, folder, secret) = lab_of_three();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let profile = tempfile::tempdir().unwrap();
        let page = driver.browser(profile.path().to_str().unwrap(), 1280, 900).await;
        page.goto(&format!("{url}#{secret}")).await.unwrap();
        let joined = "return document.querySelectorAll('#links tr').length === 3 \
                      && document.querySelectorAll('#net-map .down').length === 0";
        until(&page, "three relays and their links", joined).await;
        for (letter, relay) in [("B", "relay-1"), ("C", "relay-2"), ("D", "relay-3")] {
            let client_key = format!("{letter}{}", "A".repeat(42));
            let measured = json!([{ "relay": relay, "delay_us": 1 }]);
            let new = json!({ "subject": relay, "client_key": client_key, "measured": measured });
            let member = ask(&page, "POST", "v1/worlds/main/members", &new).await;
            assert_eq!(member["relay"]["name"], relay, "{member}");
        }
        let tree_alone = "return document.querySelectorAll('#net-map g.tree').length === 2 \
                          && document.querySelectorAll('#net-map g.mesh').length === 0 \
                          && document.getElementById('key-mesh').hidden";
        until(&page, "a tree, and no word of a mesh", tree_alone).await;

        set_core(&folder, "mesh");
        let meshed = "return document.querySelectorAll('#net-map g.core').length === 3 \
                      && document.querySelectorAll('#net-map g.mesh').length === 1 \
                      && !document.getElementById('key-mesh').hidden";
        until(&page, "three relays of a core, and a link beside the tree", meshed).await;
        let [up, mesh] = links_of(&ask(&page, "GET", "v1/worlds/main", &Value::Null).await);
        assert_eq!(drawn(&page, "tree").await, up);
        assert_eq!(drawn(&page, "mesh").await, mesh);
        let says = "return document.getElementById('net-words').textContent \
                    .endsWith('The 3 relays of its core are a mesh, with 1 link beside the tree.')";
        until(&page, "the mesh in words", says).await;
        let carries = "return [...document.querySelectorAll('#net-map text')] \
                       .filter((text) => /^[0-9.]+ Mbit\\/s$/.test(text.textContent)).length === 3";
        until(&page, "what each link carries", carries).await;
        // It looks like itself without its colour, too, and as the legend shows it.
        let differs = "const dashes = (of) => getComputedStyle(document.querySelector(of)).strokeDasharray; \
                       return dashes('#net-map .tree line') === 'none' \
                         && dashes('#net-map .mesh line') !== 'none' \
                         && dashes('#net-map .mesh line') === dashes('#key-mesh path')";
        until(&page, "another stroke than the tree's, as in the legend", differs).await;
        let wide = "return document.documentElement.scrollWidth <= window.innerWidth";
        until(&page, "no sideways scrolling", wide).await;
        keep_picture(&page, "controller-mesh").await;
        page.set_window_size(390, 844).await.unwrap();
        until(&page, "no sideways scrolling on a phone", wide).await;
        keep_picture(&page, "controller-mesh-phone").await;

        // Without that link two of the relays are the core, and the page says what the third lacks.
        remove_mesh_link(&page).await;
        let apart = "return document.querySelectorAll('#net-map g.core').length === 2 \
                     && / is not in the core: it has no link that can be used with relay-[123]\\.$/ \
                       .test(document.getElementById('net-words').textContent)";
        if !is_true_in(5, &page, apart).await {
            // Links are looked at every half minute, and it may have been proposed again at once.
            remove_mesh_link(&page).await;
        }
        until(&page, "why a relay is not in the core", apart).await;

        set_core(&folder, "center");
        until(&page, "the tree alone again", tree_alone).await;
        page.close().await.unwrap();
    });
    lab.end();
}
