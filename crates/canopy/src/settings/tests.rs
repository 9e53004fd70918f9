//! What settings are taken, and how mistakes are explained.

use super::*;
use canopy_relay::{BranchConfig, BranchId, BranchRole, Budget, ComtreeConfig, Down, LinkConfig};
use canopy_wire::Comtree;

fn resolve(text: &str, args: RelayArgs) -> Result<RelaySettings, String> {
    let path = Path::new("canopy.toml");
    RelaySettings::check(args, path, text, "off").map_err(|error| format!("{error:#}"))
}

fn flag(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn flags_win_over_the_file_over_the_default() {
    let text = "[relay]\nmode = \"periodic\"\ntick_ms = 20\n[limits]\nmax_groups = 9\n";
    let args = RelayArgs { tick_ms: flag("5"), ..RelayArgs::default() };
    let settings = resolve(text, args).unwrap();
    assert_eq!(settings.node.mode, Mode::Periodic { tick: Duration::from_millis(5) });
    assert_eq!(settings.node.listen.port(), 4040);
    assert_eq!(settings.node.tables.max_groups, 9);
    assert_eq!(settings.warnings, [""; 0]);
}

/// Files with one mistake each, and how the message goes on behind the file's name.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str)] = &[
    // Values that are out of range or unknown.
    ("[relay]\n\ntick_ms = 0", ":3: tick_ms: 0 is out of range; choose 1 to 1000"),
    ("[relay]\nthreads = 65", ":2: threads: 65 is out of range; choose 1 to 64"),
    ("[relay]\nthreads = -1", ":2: threads: -1 is out of range; choose 1 to 64"),
    ("[relay]\nsite = 28672", ":2: site: 28672 is out of range; choose 0 to 28671"),
    ("[relay]\nmode = \"fast\"", ":2: mode: there is no mode \"fast\"; choose immediate or periodic"),
    ("[relay]\nengine = \"warp\"", ":2: engine: there is no send engine named \"warp\"; choose auto, sendto"),
    ("[relay]\nengine_folder = \"\"", ":2: engine_folder: name a folder"),
    ("[limits]\nmax_sessions = 70000", ":2: max_sessions: 70000 is out of range; choose 1 to"),
    ("[limits]\nmax_groups = 0", ":2: max_groups: 0 is out of range; choose 1 to 4194304"),
    ("[limits]\nsubscription_lifetime_ms = 999", ":2: subscription_lifetime_ms: 999 is out of range; choose 1000 to"),
    ("[limits]\nkeepalive_ms = 9000", ":2: keepalive_ms: a session must live at least two keepalives; raise session_lifetime_ms, or lower keepalive_ms"),
    ("[limits]\npath_budgets = \"on\"", ":2: path_budgets: there are no path budgets \"on\"; choose all, beyond-host or off"),
    // Addresses.
    ("[relay]\nlisten = \"localhost\"", ":2: listen: \"localhost\" is no address and port; write it like 127.0.0.1:4040"),
    ("[relay]\nlisten = \"0.0.0.0:4040\"", ":2: listen: 0.0.0.0:4040 can be reached from other machines, and whoever reaches it could join; name the keys whose tokens let in with --trust, say --open to let in whoever comes, or listen on 127.0.0.1 or [::1]"),
    ("[relay]\nconsole = \"0.0.0.0:9198\"", ":2: console: 0.0.0.0:9198 can be reached from other machines, and these pages have no password; serve them on 127.0.0.1 or [::1], or say --insecure"),
    ("[relay]\nmetrics = \"[::]:9198\"", ":2: metrics: [::]:9198 can be reached from other machines"),
    ("[relay]\nconsole = \"yes\"", ":2: console: \"yes\" is no address and port; write it like"),
    // Comtrees.
    ("[relay]\ncomtrees = [1, 1]", ":2: comtrees: comtree 1 is named twice; name each once"),
    ("[relay]\ncomtrees = []", ":2: comtrees: 0 comtrees are named; a relay carries 1 to 1024"),
    ("[relay]\ncomtrees = [-1]", ":2: comtrees: a comtree is a number from 0 to 4294967295"),
    ("[relay]\ncomtrees = [\"a\"]", ":2: comtrees: this list cannot be its value; give a list of whole numbers, like comtrees = [1, 2]"),
    ("[relay]\ncomtrees = 1", ":2: comtrees: 1 cannot be its value; give a list of whole numbers, like comtrees = [1, 2]"),
    // Comtrees by tables.
    ("[relay]\ncomtrees = [1]\n[[comtree]]\nid = 2", ":2: comtrees: comtrees are described by [[comtree]] at canopy.toml:3 too; use one form of the two"),
    ("[[comtree]]\nid = 1\n\n[[comtree]]\nsite = 3", ":4: this [[comtree]] has no id; give it one, like id = 1"),
    ("[[comtree]]\nid = 1\n[[comtree]]\nid = 1", ":4: id: comtree 1 is named twice; name each once"),
    ("[[comtree]]\nid = -1", ":2: id: a comtree is a number from 0 to 4294967295"),
    ("[[comtree]]\nid = \"1\"", ":2: id: \"1\" cannot be its value; give a whole number without quotes, like id = 1"),
    ("[[comtree]]\nid = 1\nsite = 32767", ":3: site: 32767 is out of range; choose 0 to 28671"),
    ("[[comtree]]\nid = 1\nendpoints = \"70-69\"", ":3: endpoints: \"70-69\" is empty; write the lower number first"),
    ("[[comtree]]\nid = 1\nendpoints = \"63-100\"", ":3: endpoints: endpoint numbers below 64 are the relay's own; begin with 64 or more"),
    ("[[comtree]]\nid = 1\nendpoints = \"64-65536\"", ":3: endpoints: \"64-65536\" is no range of endpoint numbers; write the first and the last, like \"64-65535\""),
    ("[[comtree]]\nid = 1\nendpoints = \"64\"", ":3: endpoints: \"64\" is no range of endpoint numbers; write the first and the last"),
    ("[[comtree]]\nid = 1\nendpoints = 64", ":3: endpoints: 64 cannot be its value; give text in quotes, like endpoints = \"64-65535\""),
    ("[relay]\nthreads = 3\n[[comtree]]\nid = 1\nendpoints = \"64-65\"", ":5: endpoints: \"64-65\" is too short for 3 data threads, which need a number each; widen it, or lower threads"),
    ("[[comtree]]\nid = 1\nendpoint = 3", ":3: there is no key endpoint in [[comtree]]; there are id, site, downlink, world, endpoints, floor_ms, levels_first, up_packets, up_bits, down_packets, down_bits and branches"),
    ("[comtree]\nid = 1", ":1: comtree is a list of tables; write [[comtree]] on a line for each, and its keys below"),
    ("comtree = [1]", ":1: comtree is a list of tables; write [[comtree]] on a line for each"),
    ("comtree = []\nrelay = 1", ":2: relay is a table"),
    // Wrong types.
    ("[relay]\nthreads = \"two\"", ":2: threads: \"two\" cannot be its value; give a whole number without quotes, like threads = 2"),
    ("[relay]\ntick_ms = 1.5", ":2: tick_ms: 1.5 cannot be its value; give a whole number without quotes, like tick_ms = 50"),
    ("[relay]\nthreads = 99999999999999999999", ":2: threads: 99999999999999999999 cannot be its value"),
    ("[relay]\nlisten = 4040", ":2: listen: 4040 cannot be its value; give text in quotes, like listen = \"127.0.0.1:4040\""),
    ("[relay]\ninsecure = \"yes\"", ":2: insecure: \"yes\" cannot be its value; give true or false without quotes, like insecure = false"),
    // Keys that are not there, or elsewhere.
    ("[relay]\nmax_sessions = 9", ":2: max_sessions belongs in [limits]; move it below a line [limits]"),
    ("[limits]\nlisten = \"x\"", ":2: listen belongs in [relay]; move it below a line [relay]"),
    ("tick_ms = 5\n[relay]", ":1: tick_ms belongs in [relay]; write it below a line [relay]"),
    ("[relay]\nticks = 3", ":2: there is no key ticks; tick_ms in [relay] may be meant"),
    ("[relay]\ntick-ms = 3", ":2: there is no key tick-ms; tick_ms in [relay] may be meant"),
    ("[relay]\npassword = 3", ":2: there is no key password in [relay]; the keys are listed in docs/settings.md"),
    ("[server]\nport = 3", ":1: there is no table [server]; there are [relay], [limits], [[comtree]] and [[link]]"),
    ("relay = 3", ":1: relay is a table; write [relay] on a line, once, and its keys below"),
    ("[[relay]]", ":1: relay is a table; write [relay] on a line, once, and its keys below"),
    ("[limits]\nmember_up_bits = -1", ":2: member_up_bits: -1 is out of range; choose 0 to 1000000000000"),
    ("[limits]\nsessions_per_ip = \"off\"", ":2: sessions_per_ip: \"off\" cannot be its value; give a whole number without quotes"),
    ("[relay]\nhandshakes_per_ip = 3", ":2: handshakes_per_ip belongs in [limits]"),
    ("[relay]\nopen = true\ntrust = \"x\"", ":2: open: this lets in whoever comes, but trust only"),
    ("[relay]\ndownlink = \"some\"", ":2: downlink: \"some\" is no way to protect updates; choose member, group or none"),
    // No TOML.
    ("[relay]\nmode = periodic", ":2: this is no TOML: "),
    ("[relay]\nsite = 1\nsite = 2", ":3: this is no TOML: duplicate key"),
    ("[relay\n", ":1: this is no TOML: "),
];

#[test]
fn every_mistake_in_the_file_has_a_place_and_a_remedy() {
    for (text, expected) in MISTAKES {
        let error = resolve(text, RelayArgs::default()).expect_err(text);
        assert!(error.starts_with(&format!("canopy.toml{expected}")), "{text:?} gives\n{error}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
}

#[test]
fn a_comtree_has_the_site_and_addresses_of_its_table_or_else_the_relays() {
    let text = "[relay]\nsite = 7\n[[comtree]]\nid = 3\n[[comtree]]\nid = 9\nsite = 8\n\
                endpoints = \"100-299\"\ndownlink = \"none\"\nworld = \"arena\"\n";
    let comtrees = resolve(text, RelayArgs::default()).unwrap().node.comtrees;
    let downlink = Downlink::None;
    let world = "arena".to_owned();
    let ninth = ComtreeConfig::new(Comtree(9), 8);
    let second = ComtreeConfig { endpoints: 100..=299, downlink, world, ..ninth };
    assert_eq!(comtrees, [ComtreeConfig::new(Comtree(3), 7), second]);
    let args = || RelayArgs { comtrees: vec!["4".into(), "5".into()], ..<_>::default() };
    let comtrees = resolve("[relay]\nsite = 7\ncomtrees = [1]", args()).unwrap().node.comtrees;
    assert_eq!(comtrees, [4, 5].map(|id| ComtreeConfig::new(Comtree(id), 7)));
    let error = resolve(text, args()).unwrap_err();
    assert!(error.starts_with("--comtree: comtrees are described by [[comtree]]"), "{error}");
}

#[test]
fn mistakes_on_the_command_line_name_the_flag() {
    let cases = [
        (RelayArgs { tick_ms: flag("abc"), ..<_>::default() }, "--tick-ms: \"abc\" is no whole"),
        (RelayArgs { threads: flag("-1"), ..<_>::default() }, "--threads: -1 is out of range"),
        (RelayArgs { insecure: flag("perhaps"), ..<_>::default() }, "--insecure: \"perhaps\" is"),
        (
            RelayArgs { comtrees: vec!["x".into()], ..<_>::default() },
            "--comtree: \"x\" is no whole",
        ),
        (RelayArgs { console: flag("0.0.0.0:1"), ..<_>::default() }, "--console: 0.0.0.0:1 can be"),
        (RelayArgs { metrics: flag("0.0.0.0:1"), ..<_>::default() }, "--metrics: 0.0.0.0:1 can be"),
        (RelayArgs { listen: flag("0.0.0.0:1"), ..<_>::default() }, "--listen: 0.0.0.0:1 can be"),
    ];
    for (args, expected) in cases {
        let error = resolve("", args).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn what_does_nothing_is_named() {
    for (text, expected) in [
        ("[relay]\ntick_ms = 20", "canopy.toml:2: tick_ms: immediate mode has no ticks; choose"),
        (
            "[relay]\nengine = \"gso\"\nengine_folder = \"/x\"",
            "canopy.toml:3: engine_folder: engine gso uses nothing that was installed; choose",
        ),
    ] {
        let warnings = resolve(text, RelayArgs::default()).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].starts_with(expected), "{warnings:?}");
    }
    for text in
        ["", "[relay]\ntick_ms = 20\nmode = \"periodic\"", "[relay]\nengine_folder = \"/x\""]
    {
        assert_eq!(resolve(text, RelayArgs::default()).unwrap().warnings, [""; 0], "{text}");
    }
}

#[test]
fn other_machines_are_kept_out_unless_asked() {
    let open = "0.0.0.0:1";
    let args = |insecure: Option<&str>| RelayArgs {
        console: flag(open),
        metrics: flag(open),
        insecure: insecure.map(str::to_owned),
        ..RelayArgs::default()
    };
    let (allowed, forbidden) = ("[relay]\ninsecure = true", "[relay]\ninsecure = false");
    for (text, insecure) in [("", None), (forbidden, None), (allowed, Some("off"))] {
        let error = resolve(text, args(insecure)).unwrap_err();
        assert!(error.contains("--console") && error.contains("--insecure"), "{error}");
    }
    for (text, insecure) in [("", Some("yes")), (allowed, None), (forbidden, Some("1"))] {
        let settings = resolve(text, args(insecure)).unwrap();
        assert_eq!([settings.console, settings.metrics], [open.parse().ok(), open.parse().ok()]);
    }
}

#[test]
fn other_machines_come_in_by_tokens_unless_all_are_to() {
    let listen = |text: &str| {
        let args = RelayArgs { listen: flag("0.0.0.0:1"), ..RelayArgs::default() };
        resolve(&format!("[relay]\n{text}"), args).map(|settings| settings.node.listen.port())
    };
    for guarded in ["trust = \"trust.toml\"", "open = true"] {
        assert_eq!(listen(guarded), Ok(1), "{guarded}");
        let clear = format!("{guarded}\ndownlink = \"none\"");
        let error = listen(&clear).unwrap_err();
        assert!(error.contains("cleartext") && error.contains("--insecure"), "{error}");
        assert_eq!(listen(&format!("{clear}\ninsecure = true")), Ok(1));
        let may_be_clear = |text: &str, at| {
            let args = RelayArgs { listen: flag(at), ..RelayArgs::default() };
            resolve(&format!("[relay]\n{guarded}\n{text}"), args).map(|one| one.may_be_clear)
        };
        for (text, at, may) in [
            ("", "0.0.0.0:1", false),
            ("insecure = true", "0.0.0.0:1", true),
            ("", "[::1]:1", true),
            ("", "127.0.0.1:1", true),
        ] {
            assert_eq!(may_be_clear(text, at), Ok(may), "{text} {at}");
        }
    }
    for unguarded in ["", "insecure = true", "open = false", "trust = \"\""] {
        let error = listen(unguarded).unwrap_err();
        assert!(error.contains("--trust") && error.contains("--open"), "{error}");
    }
}

#[test]
fn limits_have_defaults_and_zero_is_none() {
    let limits = |text| resolve(text, RelayArgs::default()).unwrap().node;
    let default = limits("");
    assert_eq!(default.budgets, canopy_relay::Budgets::default());
    assert_eq!(default.gate, canopy_relay::GateLimits::default());
    let none = limits(
        "[limits]\nmember_up_packets = 0\nmember_up_bits = 0\nsubscription_changes = 0\n\
         handshakes_per_ip = 0\nhandshakes_per_prefix = 0\nsessions_per_ip = 0\n\
         replies_per_ip_port = 0\npath_budgets = \"off\"\n",
    );
    assert_eq!(none.budgets, canopy_relay::Budgets::NONE);
    assert_eq!(none.gate, canopy_relay::GateLimits::NONE);
}

/// A key of a relay, as text.
const KEY: &str = "0101010101010101010101010101010101010101010101010101010101010101";

/// A `[[link]]` of five lines to the relay whose key begins with `number`.
fn link(number: u8) -> String {
    let key = format!("{number:02x}{}", &KEY[2..]);
    format!("[[link]]\nname = \"r{number}\"\nkey = \"{key}\"\naddress = \"10.0.0.2:4040\"\n\n")
}

/// A comtree with these branches; the third line is the first branch's.
fn comtree(branches: &[&str]) -> String {
    format!("[[comtree]]\nid = 1\nbranches = [{{ {} }}]\n", branches.join(" },\n{ "))
}

fn first_of(text: &str) -> String {
    format!("[relay]\nkey = \"k\"\n{text}")
}

#[test]
fn links_and_branches_become_what_the_relay_is_given() {
    let text = format!(
        "{}{}calls = false\nthread = 3\n{}",
        link(7),
        link(9).trim_end().to_owned() + "\n",
        comtree(&[
            "link = \"r7\", role = \"core\", site = 2",
            "link = \"r9\", role = \"child\", site = 0",
        ]),
    );
    let settings = resolve(&first_of(&text), RelayArgs::default()).unwrap();
    assert_eq!(settings.warnings, [""; 0]);
    let key = |number: u8| [&[number][..], &[1; 31]].concat().try_into().unwrap();
    let own: [u8; 32] = key(8);
    let links: Vec<_> = settings.links.iter().map(|link| link.config(&own).unwrap()).collect();
    let path = SocketAddr::from(([10, 0, 0, 2], 4040)).into();
    // The smaller of two keys calls, unless it is said.
    let seventh = LinkConfig { key: key(7), path, thread: 0, calls: false };
    let ninth = LinkConfig { key: key(9), path, thread: 3, calls: false };
    assert_eq!(links, [seventh, ninth]);
    assert!(settings.links[0].config(&key(6)).unwrap().calls);
    assert!(!settings.links[1].config(&key(6)).unwrap().calls);
    let error = settings.links[0].config(&key(7)).unwrap_err().to_string();
    assert!(error.starts_with("canopy.toml:3: key: that is this relay's own key"), "{error}");
    let id =
        |link: &LinkConfig| BranchId { comtree: Comtree(1), link: link.key, thread: link.thread };
    let core = BranchConfig { id: id(&seventh), role: BranchRole::Core, site: 2 };
    let child = BranchConfig { id: id(&ninth), role: BranchRole::Child, site: 0 };
    assert_eq!(settings.branches, [core, child]);
}

#[test]
fn comtrees_and_branches_have_budgets_of_their_own() {
    let text = format!(
        "[limits]\ncomtree_up_packets = 7\ncomtree_up_bits = 8\n{}{}up_bits = 9\n[[comtree]]\nid = 2\n",
        link(7),
        comtree(&["link = \"r7\", role = \"core\", site = 2, up_packets = 5"]),
    );
    let settings = resolve(&first_of(&text), RelayArgs::default()).unwrap();
    let [first, second] = [(7, 9), (7, 8)].map(|(up_packets, up_bits)| Budget {
        up_packets,
        up_bits,
        ..Budget::default()
    });
    let own = &settings.own_budgets;
    assert_eq!(own.comtrees, [(Comtree(1), first), (Comtree(2), second)].into());
    let of_branch = Budget { up_packets: 5, ..Budget::default() };
    assert_eq!(own.branches, [(settings.branches[0].id, of_branch)].into());
    let wrong = "[[comtree]]\nid = 1\nup_bits = 2000000000000\n";
    let error = resolve(wrong, RelayArgs::default()).unwrap_err().to_string();
    assert!(error.contains(":3: up_bits: 2000000000000 is out of range; choose 0 to"), "{error}");
}

#[test]
fn links_have_capacities_and_branches_have_guarantees() {
    let text = format!(
        "{}capacity_bits = 1000000\n{}{}",
        link(7),
        link(9),
        comtree(&[
            "link = \"r7\", role = \"core\", site = 2, guaranteed_bits = 300000",
            "link = \"r9\", role = \"core\", site = 3",
        ]),
    );
    let settings = resolve(&first_of(&text), RelayArgs::default()).unwrap();
    let capacities: Vec<_> = settings.links.iter().map(|link| link.capacity).collect();
    assert_eq!(capacities, [Down { bits: 1_000_000, updates: 0 }, Down::NONE]);
    let guarantees = [(settings.branches[0].id, 300_000)].into();
    assert_eq!(settings.own_budgets.guarantees, guarantees);
    let wrong = link(7) + "capacity_packets = -1\n";
    let error = resolve(&wrong, RelayArgs::default()).unwrap_err().to_string();
    assert!(error.contains(": capacity_packets: -1 is out of range; choose 0 to"), "{error}");
}

#[test]
fn a_relay_with_links_that_would_not_be_known_again_is_warned() {
    let settings = resolve(&link(7), RelayArgs::default()).unwrap();
    assert_eq!(settings.warnings.len(), 1);
    let warning = &settings.warnings[0];
    assert!(warning.starts_with("canopy.toml:1: without a key file"), "{warning}");
}

#[test]
fn every_mistake_of_links_and_branches_has_a_place_and_a_remedy() {
    let without = |word: &str| {
        let text = link(1);
        text.lines().filter(|line| !line.starts_with(word)).collect::<Vec<_>>().join("\n")
    };
    let with = |from: &str, to: &str| link(1).replace(from, to);
    let branches = |branches: &[&str]| format!("{}{}{}", link(1), link(2), comtree(branches));
    let parent = "link = \"r1\", role = \"parent\", site = 2";
    let other = |role: &str, site: u16| format!("link = \"r2\", role = \"{role}\", site = {site}");
    let conflict = ":14: role: on comtree 1 a relay has one parent, none if it is in the core, and a next-parent only beside a parent";
    #[rustfmt::skip]
    let cases = [
        (without("name"), ":1: this [[link]] has no name; give it one, like name = \"b\""),
        (without("key"), ":1: this [[link]] has no key; give it one, like key = "),
        (without("address"), ":1: this [[link]] has no address; give it one, like address = \"10.0.0.2:4040\""),
        (with("r1", ""), ":2: name: \"\" is no name of a link; give one of 1 to 64"),
        (with("r1", "a b"), ":2: name: \"a b\" is no name of a link"),
        (with(&KEY[..9], ""), ":3: key: \"1111110101\" is no relay's key: it has 64"),
        (with("10.0.0.2:4040", "b:1"), ":4: address: \"b:1\" is no address and port; write it like"),
        (with("10.0.0.2:4040", "10.0.0.2:0"), ":4: address: nobody can be reached at 10.0.0.2:0; give"),
        (with("10.0.0.2", "0.0.0.0"), ":4: address: nobody can be reached at 0.0.0.0:4040"),
        (link(1).trim_end().to_owned() + "\nthread = 64", ":5: thread: 64 is out of range; choose 0 to 63"),
        (link(1).trim_end().to_owned() + "\ncalls = 1", ":5: calls: 1 cannot be its value; give true or false"),
        (link(1).trim_end().to_owned() + "\ncall = true", ":5: there is no key call in [[link]]; there are name, key, address, calls, thread, capacity_bits and capacity_packets"),
        (link(1) + &link(2).replace("r2", "r1"), ":7: name: the link at canopy.toml:1 is named \"r1\" too; give"),
        (link(1) + &link(1).replace("r1", "r2"), ":8: key: the link at canopy.toml:1 leads to the relay with this key already"),
        ("link = 3".to_owned(), ":1: link is a list of tables; write [[link]] on a line for each"),
        (branches(&["role = \"child\", site = 2"]), ":13: this branch has no link; give it one, like link = \"b\""),
        (branches(&["link = \"r1\", site = 2"]), ":13: this branch has no role; give it one, like role = \"parent\""),
        (branches(&["link = \"r1\", role = \"child\""]), ":13: this branch has no site; give it one, like site = 2"),
        (branches(&[&parent.replace("r1", "r3")]), ":13: link: there is no [[link]] named \"r3\"; describe it"),
        (branches(&[&parent.replace("parent", "root")]), ":13: role: \"root\" is nothing that a neighbour can be; choose parent, next-parent, core, core-peer, next-peer, last-peer or child"),
        (branches(&[&parent.replace('2', "28672")]), ":13: site: 28672 is out of range; choose 0 to 28671"),
        (branches(&[&parent.replace("site", "sites")]), ":13: there is no key sites in branches; there are link, role, site, up_packets, up_bits, down_packets, down_bits and guaranteed_bits"),
        (branches(&[parent, &other("parent", 3)]), conflict),
        (branches(&[&parent.replace("parent", "core"), &other("next-parent", 3)]), conflict),
        (branches(&[parent, &other("core", 3)]), conflict),
        (branches(&[parent, &other("core-peer", 3)]), conflict),
        (branches(&[&other("core", 3), parent]), conflict),
        (branches(&[parent, &other("child", 2)]), ":14: site: on comtree 1 another branch leads to site 2 already"),
        (branches(&[parent, parent]), ":14: link: comtree 1 has a branch over link \"r1\" already; name each link once"),
        ("[[comtree]]\nid = 1\nbranches = [1]".to_owned(), ":3: branches: this list cannot be its value; give a list of tables, like branches = [{ link"),
        ("[[comtree]]\nid = 1\nbranches = true".to_owned(), ":3: branches: true cannot be its value; give a list of tables"),
    ];
    for (text, expected) in cases {
        let error = resolve(&text, RelayArgs::default()).expect_err(&text);
        assert!(error.starts_with(&format!("canopy.toml{expected}")), "{text} gives\n{error}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
    // Neighbours of the relay's own site are its subtree, and core peers of one site have links.
    let peer = other("core-peer", 2);
    for good in [[parent.replace('2', "1"), other("child", 1)], [peer.replace("r2", "r1"), peer]] {
        assert!(resolve(&branches(&[&good[0], &good[1]]), RelayArgs::default()).is_ok());
    }
}

#[test]
fn what_a_running_relay_cannot_change_is_named() {
    let settings = |text: &str| resolve(text, RelayArgs::default()).unwrap();
    let before = settings("");
    for (text, expected) in [
        ("", vec![]),
        ("[limits]\nmax_subscriptions_per_participant = 9", vec![]),
        ("[relay]\nsite = 9\ncomtrees = [1, 2]", vec![]),
        ("[relay]\nmode = \"periodic\"\ntick_ms = 9", vec!["mode"]),
        ("[relay]\nlisten = \"127.0.0.1:9\"\n[limits]\ndrain_ms = 9", vec!["listen", "drain_ms"]),
        (
            "[relay]\nkey = \"k\"\ntrust = \"t\"\nmetrics = \"127.0.0.1:9\"",
            vec!["key", "metrics", "trust"],
        ),
    ] {
        assert_eq!(before.fixed(&settings(text)), expected, "{text}");
    }
    let ticks = |ms: u8| settings(&format!("[relay]\nmode = \"periodic\"\ntick_ms = {ms}"));
    assert_eq!(ticks(5).fixed(&ticks(6)), ["tick_ms"]);
    assert_eq!(
        settings("[relay]\ntrust = \"t\"").fixed(&settings("[relay]\ntrust = \"u\"")),
        [""; 0]
    );
}

#[test]
fn only_what_a_running_relay_changes_is_not_fixed() {
    let before = resolve("", RelayArgs::default()).unwrap();
    for setting in super::file::keys_of("limits") {
        // One of these values is valid for each setting, and is nobody's default.
        let after = ["1300", "20000", "\"all\""].iter().find_map(|value| {
            resolve(&format!("[limits]\n{setting} = {value}"), RelayArgs::default()).ok()
        });
        let fixed = before.fixed(&after.expect(setting));
        let changes = ["max_subscriptions_per_participant"].contains(&setting);
        assert_eq!(fixed.is_empty(), changes, "{setting}");
    }
}

#[test]
fn the_page_lists_every_key() {
    let page = include_str!("../../../../docs/settings.md");
    for key in super::file::keys() {
        assert!(page.lines().any(|line| line.starts_with(&format!("{key} = "))), "no {key}");
    }
}
