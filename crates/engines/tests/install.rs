//! Installing the clone engines, what holds on to them, and removing them.

mod bed;

use bed::{Bed, CLONERS, IPV4, IPV6, Sender};
use canopy_engines::{
    EngineName, InstallError, InstallRequest, install, installations, private_engine_folder,
};
use std::time::{Duration, Instant};

#[test]
fn what_is_left_of_a_device_that_is_gone_is_replaced() {
    let Some(bed) = Bed::new() else { return };
    let index = bed.installation().device;
    bed.near.ip("link del near").unwrap();
    bed.near.ip(&format!("link add near index {index} type veth peer name other")).unwrap();
    let path = bed.path();
    let request = InstallRequest { device: "near", folder: &path, owner: 0, xdp: false };
    bed.near.run(|| install(&request)).unwrap().unwrap();
    let again = bed.near.run(|| install(&request)).unwrap();
    assert!(matches!(again, Err(InstallError::Present(_))), "{again:?}");
}

#[test]
fn a_device_that_has_the_taps_name_is_left_alone() {
    let Some(bed) = Bed::new() else { return };
    let installation = bed.installation();
    let tap = format!("canopy{}", installation.device);
    let path = bed.path().join("../other");
    let request = |xdp| InstallRequest { device: "near", folder: &path, owner: 0, xdp };
    let there = || bed.near.ip(&format!("link show {tap}")).is_ok();

    // That of what is installed in another folder.
    let error = bed.near.run(|| install(&request(true))).unwrap().unwrap_err().to_string();
    assert!(error.contains(&tap) && error.contains("another folder"), "{error}");
    let second = bed.near.run(|| install(&request(false))).unwrap().unwrap();
    bed.near.run(|| second.remove()).unwrap().unwrap();
    assert!(there() && !path.exists());
    let mut sender = Sender::new(&bed, EngineName::Xdp, IPV4);
    let report = sender.serve(&bed.receivers(IPV4, 9), b"still", 5, "the first installation");
    assert_eq!(report.cloned, 9, "{report:?}");

    // Somebody else's.
    bed.near.run(|| installation.remove()).unwrap().unwrap();
    assert!(!there());
    bed.near.ip(&format!("link add {tap} type veth peer name foreign")).unwrap();
    let error = bed.near.run(|| install(&request(true))).unwrap().unwrap_err().to_string();
    assert!(error.contains(&tap), "{error}");
    let alone = bed.near.run(|| install(&request(false))).unwrap().unwrap();
    bed.near.run(|| alone.remove()).unwrap().unwrap();
    assert!(there());
}

#[test]
fn many_who_install_at_once_get_one_installation() {
    let Some(bed) = Bed::new() else { return };
    bed.near.run(|| bed.installation().remove()).unwrap().unwrap();
    // By a detour, and with a character that the kernel's list of mounts has in another form.
    let path = bed.path().join("../with space/../with space");
    std::fs::create_dir_all(bed.path().join("../with space")).unwrap_or_default();
    let at_once = |what: &(dyn Fn() -> bool + Sync)| -> usize {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| bed.near.run(what).unwrap())).collect();
            all.into_iter().map(|one| usize::from(one.join().unwrap())).sum()
        })
    };
    let request = InstallRequest { device: "near", folder: &path, owner: 0, xdp: true };
    assert_eq!(at_once(&|| install(&request).is_ok()), 1);
    let [one] = &installations(&path).unwrap()[..] else { panic!("one") };
    assert!(one.complete);
    assert_eq!(at_once(&|| one.remove().is_ok()), 4);
    assert!(!path.exists(), "nothing is left, nor mounted");
}

#[test]
fn a_mount_point_whose_parent_takes_no_files_is_as_good_as_any_folder() {
    let Some(bed) = Bed::new() else { return };
    bed.near.run(|| bed.installation().remove()).unwrap().unwrap();
    let inside = || {
        // The thread's own folder; its parent is sysfs. A new one may hold files of the kernel's.
        let folder = private_engine_folder().unwrap();
        let entries = || std::fs::read_dir(folder).unwrap().count();
        let before = entries();
        assert!(std::fs::create_dir(folder.with_extension("lock")).is_err(), "what makes it hard");
        let request = InstallRequest { device: "near", folder, owner: 0, xdp: true };
        let one = install(&request).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(installations(folder).unwrap(), std::slice::from_ref(&one));
        assert!(matches!(install(&request), Err(InstallError::Present(_))));
        one.remove().unwrap();
        assert_eq!(entries(), before, "nothing is left");
    };
    bed.near.run(inside).unwrap();
}

#[test]
fn a_folder_that_cannot_be_made_is_named_and_root_is_not_told_to_become_root() {
    let Some(bed) = Bed::new() else { return };
    let folder = std::path::Path::new("/sys/canopy-engine");
    let request = InstallRequest { device: "near", folder, owner: 0, xdp: false };
    let error = bed.near.run(|| install(&request)).unwrap().unwrap_err().to_string();
    assert!(error.contains("/sys/canopy-engine") && error.contains("--folder"), "{error}");
    assert!(!error.contains("root"), "{error}");
}

#[test]
fn what_was_installed_in_part_is_said_and_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let Some(bed) = Bed::new() else { return };
    let path = bed.path();
    let [whole] = &installations(&path).unwrap()[..] else { panic!("one") };
    assert!(whole.complete);
    let mut entries = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let folder = entries.find(|path| path.join("slot-0").exists()).unwrap();
    // As it is until the last step.
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    let [part] = &installations(&path).unwrap()[..] else { panic!("one") };
    assert!(!part.complete);
    let error = bed.open(EngineName::TcBpf, &bed.sender(IPV4)).err().expect("not whole");
    assert!(error.to_string().contains("not installed"), "{error}");
    let request = InstallRequest { device: "near", folder: &path, owner: 0, xdp: true };
    bed.near.run(|| install(&request)).unwrap().unwrap();
    Sender::new(&bed, EngineName::Xdp, IPV4);
}

#[test]
fn only_its_owner_may_lock_a_slot() {
    use std::os::unix::fs::PermissionsExt;
    let Some(bed) = Bed::new() else { return };
    let folder = std::fs::read_dir(bed.path()).unwrap().map(|entry| entry.unwrap().path());
    let folder = folder.into_iter().find(|path| path.join("slot-0").exists()).unwrap();
    let mode = std::fs::metadata(folder.join("slot-0")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn slots_are_claimed_and_given_back() {
    let Some(bed) = Bed::new() else { return };
    let mut senders: Vec<Sender<'_>> =
        (0..16).map(|_| Sender::new(&bed, EngineName::TcBpf, IPV4)).collect();
    assert_eq!(bed.installation().slots_in_use(), Some(16));
    let socket = bed.sender(IPV4);
    let error = bed.open(EngineName::Xdp, &socket).err().expect("there is no 17th").to_string();
    assert!(error.contains("all 16 slots are in use"), "{error}");
    let to = bed.receivers(IPV4, 9);
    senders[15].serve(&to, b"the last", 8, "the last slot");
    senders.remove(3);
    // A test beside this one may be starting a program: until it runs, that has all files of this process
    // open, and so their locks.
    let deadline = Instant::now() + Duration::from_secs(10);
    while bed.installation().slots_in_use() != Some(15) {
        assert!(Instant::now() < deadline, "{:?}", bed.installation().slots_in_use());
        std::thread::yield_now();
    }
    senders.push(Sender::new(&bed, EngineName::Xdp, IPV4));
    assert_eq!(bed.installation().slots_in_use(), Some(16));
    senders[15].serve(&to, b"again", 5, "a slot that was used before");
}

#[test]
fn removal_leaves_nothing_and_senders_fall_back() {
    for (name, family) in CLONERS.into_iter().flat_map(|name| [(name, IPV4), (name, IPV6)]) {
        let Some(bed) = Bed::new() else { return };
        let mut sender = Sender::new(&bed, name, family);
        let to = bed.receivers(family, 16);
        sender.serve(&to, b"before", 6, "before");
        bed.near.run(|| bed.installation().remove()).unwrap().unwrap();
        for _ in 0..20 {
            let report = sender.serve(&to, b"after", 5, "after");
            assert_eq!((report.cloned, report.fallbacks), (0, 16), "{name}");
        }
        assert!(!bed.path().exists());
        assert_eq!(installations(&bed.path()).unwrap(), []);
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(bed.path().to_str().unwrap()), "no mount is left");
        let devices = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        assert!(!bed.near.run(devices).unwrap().contains("canopy"), "no tap is left");
        let error = bed.open(name, &sender.socket).err().expect("it is gone").to_string();
        assert!(error.contains("canopy engine install"), "{error}");
    }
}

#[test]
fn what_is_installed_is_seen() {
    let Some(bed) = Bed::new() else { return };
    let found = installations(&bed.path()).unwrap();
    assert_eq!(found, [bed.installation().clone()]);
    assert!(found[0].xdp && !found[0].is_here());
    let device = bed.near.run(|| found[0].device_now()).unwrap();
    assert_eq!(device, Some(("near".to_owned(), true)));
    assert_eq!(found[0].device_now(), None, "another namespace's");
}
