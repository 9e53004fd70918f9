//! A crowd through a real relay over real sockets: all is well when all is well, and the oracle
//! finds each kind of fault that is made on the way.

mod meddler;

use canopy_bots::{
    CrowdConfig, CrowdError, DEFAULT_HOP, Generated, Grid, Killed, Report, Trace, run,
};
use canopy_relay::Mode;
use canopy_wire::Comtree;
use meddler::{Fault, Meddler, TestRelay};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(50);
const MODES: [Mode; 2] = [Mode::Immediate, Mode::Periodic { tick: TICK }];

fn config(relay: SocketAddr) -> CrowdConfig {
    CrowdConfig {
        relays: vec![relay.into()],
        issuer: None,
        comtree: Comtree(1),
        speed: 1.0,
        grid: Grid::new(2.0, 4.0).unwrap(),
        bytes: 100,
        settle: Duration::from_millis(250) + 2 * TICK,
        hop: DEFAULT_HOP,
        weigh: None,
        seats: None,
        killed: None,
        controller: None,
        endures: false,
    }
}

fn crowd(walkers: u32, seconds: f64) -> Trace {
    Trace::generate(&Generated { seed: 7, walkers, side: 20.0, seconds, rate: 10.0 })
}

fn walk(relay: SocketAddr, trace: &Trace) -> Report {
    let stop = AtomicBool::new(false);
    let report = run(&config(relay), trace, None, &stop, |_| ()).unwrap();
    assert!(report.verdict.delivered > 0 && report.verdict.expected > 0, "{report:?}");
    report
}

#[test]
fn everything_arrives_once_in_order_where_it_must_in_both_modes() {
    for (mode, threads) in MODES.into_iter().flat_map(|mode| [(mode, 1), (mode, 3)]) {
        let relay = TestRelay::start(mode, threads, 200);
        let trace = crowd(60, 2.0);
        let report = walk(relay.address(), &trace);
        assert!(report.is_flawless(), "{mode:?}, {threads} data threads: {report:?}");
        assert_eq!(report.verdict.published, trace.rows().len() as u64, "{mode:?}: {report:?}");
        assert_eq!(report.clients, 60);
    }
}

/// A crowd behind a meddler; and how many updates that one meddled with.
fn meddled(fault: Fault) -> (Report, u64) {
    let relay = TestRelay::in_clear();
    let meddler = Meddler::start(relay.address(), fault);
    let report = walk(meddler.address, &crowd(60, 3.0));
    assert!(!report.is_flawless(), "{report:?}");
    (report, meddler.meddled.load(Ordering::Relaxed))
}

/// Whoever is far away gets one update in five; the oracle would tell of any other.
#[test]
fn details_reach_only_who_is_near() {
    let trace = crowd(60, 3.0);
    let stop = AtomicBool::new(false);
    let mut delivered = Vec::new();
    let one = Grid::new(2.0, 8.0).unwrap();
    for mode in MODES {
        let relay = TestRelay::start(mode, 1, 200);
        for grid in [one, one.with_near(2.0).unwrap()] {
            let config = CrowdConfig { grid, ..config(relay.address()) };
            let report = run(&config, &trace, None, &stop, |_| ()).unwrap();
            assert!(report.is_flawless(), "{mode:?}: {report:?}");
            delivered.push(report.verdict.delivered);
        }
    }
    let [one, two, one_periodic, two_periodic] = delivered[..] else { panic!("{delivered:?}") };
    assert!(two * 10 < one * 6 && two_periodic * 10 < one_periodic * 6, "{delivered:?}");
}

/// Two relays that nobody has joined: what goes from one to the other is missing, and only that.
#[test]
fn walkers_are_spread_and_what_does_not_cross_is_missing() {
    let relays = [(); 2].map(|()| TestRelay::start(Mode::Immediate, 1, 200));
    let targets = relays.iter().map(|relay| relay.address().into()).collect();
    let config = CrowdConfig { relays: targets, ..config(relays[0].address()) };
    let stop = AtomicBool::new(false);
    let report = run(&config, &crowd(61, 3.0), None, &stop, |_| ()).unwrap();
    let shares: Vec<_> = report.relays.iter().map(|share| (share.relay, share.walkers)).collect();
    assert_eq!(shares, [(relays[0].address(), 31), (relays[1].address(), 30)]);
    let verdict = report.verdict;
    assert_eq!((verdict.duplicates, verdict.unexpected, verdict.out_of_order), (0, 0, 0));
    // About half of what is due has its receiver at the other relay.
    assert!(verdict.missing * 3 > verdict.expected, "{report:?}");
    assert!(verdict.delivered * 3 > verdict.expected, "{report:?}");
}

#[test]
fn a_relay_that_is_not_there_is_named_or_endured() {
    let relay = TestRelay::start(Mode::Immediate, 1, 200);
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = silent.local_addr().unwrap();
    let relays = vec![relay.address().into(), nobody.into()];
    let config = CrowdConfig { relays, ..config(relay.address()) };
    let stop = AtomicBool::new(false);
    let trace = crowd(20, 6.0);
    let error = run(&config, &trace, None, &stop, |_| ()).unwrap_err();
    assert!(matches!(error, CrowdError::Unreachable(at) if at == nobody), "{error}");
    let config = CrowdConfig { endures: true, ..config };
    let report = run(&config, &trace, None, &stop, |_| ()).unwrap();
    assert!(report.updates_unsent * 3 > trace.rows().len() as u64, "{report:?}");
    assert_eq!(report.verdict.missing, 0, "those of the relay that is there lack nothing");
}

#[test]
fn a_relay_that_never_comes_back_is_an_outage_until_each_walker_leaves() {
    let mut relay = Some(TestRelay::start(Mode::Immediate, 1, 200));
    let config = CrowdConfig { endures: true, ..config(relay.as_ref().unwrap().address()) };
    // Who hears nothing gives its relay up after six seconds.
    let trace = crowd(5, 10.0);
    let report = run(&config, &trace, None, &AtomicBool::new(false), |_| relay = None).unwrap();
    let mut without: Vec<u32> = report.outages.iter().map(|outage| outage.walker).collect();
    without.sort_unstable();
    assert_eq!(without, [0, 1, 2, 3, 4]);
    let until = |outage: &canopy_bots::Outage| outage.at_ms + outage.ms;
    assert!(report.outages.iter().all(|outage| until(outage) >= 9_900), "{:?}", report.outages);
}

/// Nobody else misses anything, and nothing is taken for somebody's who is somebody new by then.
#[test]
fn whose_process_is_killed_is_gone_until_it_is_there_again() {
    let relay = TestRelay::start(Mode::Immediate, 1, 200);
    let is_killed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_killed);
    let on_it = |walker: u32| walker % 4 == 1;
    let killed = Killed(Arc::new(move |walker| on_it(walker) && seen.load(Ordering::Relaxed)));
    let config = CrowdConfig { killed: Some(killed), ..config(relay.address()) };
    let trace = crowd(20, 9.0);
    // It is said every two seconds how far the crowd is.
    let mut fewest = 20;
    let report = run(&config, &trace, None, &AtomicBool::new(false), |of| {
        fewest = fewest.min(of.walkers);
        is_killed.store(of.done < 0.3, Ordering::Relaxed);
    });
    let report = report.unwrap();
    assert_eq!((fewest, report.verdict.missing), (15, 0), "{report:?}");
    assert!(report.is_orderly(), "{report:?}");
    assert!(report.verdict.published < trace.rows().len() as u64 * 39 / 40, "{report:?}");
    let mut back: Vec<u32> = report.outages.iter().map(|outage| outage.walker).collect();
    back.sort_unstable();
    assert_eq!(back, (0..20).filter(|walker| on_it(*walker)).collect::<Vec<_>>());
    let is_counted_from_its_return = |outage: &canopy_bots::Outage| outage.at_ms >= 4_000;
    assert!(report.outages.iter().all(is_counted_from_its_return), "{:?}", report.outages);
}

#[test]
fn whoever_is_late_publishes_all_the_same_before_it_leaves() {
    let relay = TestRelay::start(Mode::Immediate, 1, 200);
    // A minute at once: no machine keeps up.
    let config = CrowdConfig { speed: 10_000.0, ..config(relay.address()) };
    let trace = crowd(60, 60.0);
    let report = run(&config, &trace, None, &AtomicBool::new(false), |_| ()).unwrap();
    let rows = trace.rows().len() as u64;
    assert_eq!((report.verdict.published, report.updates_unsent), (rows, 0), "{report:?}");
}

#[test]
fn dropped_sends_are_missing() {
    let (report, dropped) = meddled(Fault::Drop);
    let missing = report.verdict.missing;
    assert!(missing > 0 && missing <= dropped, "{dropped} dropped: {report:?}");
    // Few walkers unsubscribe at any time, so few of the dropped may be excused.
    assert!(missing * 2 > dropped, "{dropped} dropped: {report:?}");
    assert_eq!((report.verdict.duplicates, report.verdict.unexpected), (0, 0), "{report:?}");
}

#[test]
fn doubled_sends_are_duplicates() {
    let (report, doubled) = meddled(Fault::Double);
    assert_eq!((report.verdict.missing, report.verdict.unexpected), (0, 0), "{report:?}");
    assert_eq!(report.verdict.duplicates, doubled, "{report:?}");
}

#[test]
fn sends_to_the_wrong_participant_are_unexpected() {
    let (report, misrouted) = meddled(Fault::Misroute);
    let unexpected = report.verdict.unexpected;
    assert!(unexpected > 0 && unexpected <= misrouted, "{misrouted} misrouted: {report:?}");
    assert_eq!(report.verdict.missing, 0, "{report:?}");
}

#[test]
fn sends_in_another_order_are_found() {
    let (report, _) = meddled(Fault::Swap);
    assert!(report.verdict.out_of_order > 0, "{report:?}");
    assert_eq!((report.verdict.duplicates, report.verdict.unexpected), (0, 0), "{report:?}");
}

#[test]
fn sends_in_another_publishers_name_are_unexpected() {
    let (report, forged) = meddled(Fault::Forge);
    // One update of each datagram is forged, and whoever must have got it misses it.
    assert!(report.verdict.unexpected > 0 && report.verdict.unexpected <= forged, "{report:?}");
    assert!(report.verdict.missing <= forged, "{report:?}");
    assert_eq!((report.verdict.duplicates, report.verdict.out_of_order), (0, 0), "{report:?}");
}

#[test]
fn nobody_there_is_said_with_the_address() {
    // Bound but never read: the kernel sends no refusal, so it is the limit that decides.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let stop = AtomicBool::new(false);
    let error = run(&config(address), &crowd(2, 60.0), None, &stop, |_| ()).unwrap_err();
    assert!(matches!(error, CrowdError::Unreachable(at) if at == address), "{error}");
    assert!(error.to_string().contains(&address.to_string()));
}

#[test]
fn a_relay_without_room_for_all_is_not_passed_over_in_silence() {
    let relay = TestRelay::start(Mode::Immediate, 1, 30);
    let stop = AtomicBool::new(false);
    let result = run(&config(relay.address()), &crowd(60, 3.0), None, &stop, |_| ());
    assert!(matches!(result, Err(CrowdError::Refused { .. })), "30 of 60 were refused: {result:?}");
}

#[test]
fn a_crowd_that_cannot_keep_up_still_stops_when_told() {
    let relay = TestRelay::start(Mode::Immediate, 1, 200);
    let trace = crowd(60, 2000.0);
    let stop = AtomicBool::new(false);
    let config = CrowdConfig { speed: 100_000.0, ..config(relay.address()) };
    let (ended, over) = mpsc::channel::<()>();
    let report = std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            // When the run is told to stop is the test's input; nothing is waited for.
            let _ = over.recv_timeout(Duration::from_secs(3));
            stop.store(true, Ordering::Relaxed);
        });
        let report = run(&config, &trace, None, stop, |_| ()).unwrap();
        drop(ended);
        report
    });
    assert!(report.verdict.published < trace.rows().len() as u64, "{report:?}");
}
