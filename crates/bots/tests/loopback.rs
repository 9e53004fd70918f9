//! A crowd through a real relay over real sockets: all is well when all is well, and the oracle
//! finds each kind of fault that the relay is told to make.

mod relay_thread;

use canopy_bots::{CrowdConfig, CrowdError, Generated, Grid, Report, Trace, run};
use canopy_relay::Mode;
use canopy_wire::Comtree;
use relay_thread::{Fault, RelayThread};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(50);
const MODES: [Mode; 2] = [Mode::Immediate, Mode::Periodic { tick: TICK }];

fn config(relay: SocketAddr) -> CrowdConfig {
    CrowdConfig {
        relay,
        comtree: Comtree(1),
        speed: 1.0,
        grid: Grid::new(2.0, 4.0).unwrap(),
        bytes: 100,
        settle: Duration::from_millis(250) + 2 * TICK,
    }
}

fn crowd(walkers: u32, seconds: f64) -> Trace {
    Trace::generate(&Generated { seed: 7, walkers, side: 20.0, seconds, rate: 10.0 })
}

fn walk(relay: &RelayThread, trace: &Trace) -> Report {
    let stop = AtomicBool::new(false);
    let report = run(&config(relay.address), trace, None, &stop, |_| ()).unwrap();
    assert!(report.verdict.delivered > 0 && report.verdict.expected > 0, "{report:?}");
    report
}

#[test]
fn everything_arrives_once_where_it_must_in_both_modes() {
    for mode in MODES {
        let relay = RelayThread::start(mode, Fault::None, 200);
        let trace = crowd(60, 3.0);
        let report = walk(&relay, &trace);
        let wrong = (report.verdict.missing, report.verdict.duplicates, report.verdict.unexpected);
        assert_eq!(wrong, (0, 0, 0), "{mode:?}: {report:?}");
        assert_eq!(report.verdict.published, trace.rows().len() as u64, "{mode:?}: {report:?}");
        assert_eq!(report.clients, 60);
    }
}

/// Whoever is far away gets one update in five; the oracle would tell of any other.
#[test]
fn details_reach_only_who_is_near() {
    let trace = crowd(60, 3.0);
    let stop = AtomicBool::new(false);
    let mut delivered = Vec::new();
    for mode in MODES {
        let relay = RelayThread::start(mode, Fault::None, 200);
        for grid in
            [Grid::new(2.0, 8.0).unwrap(), Grid::new(2.0, 8.0).unwrap().with_near(2.0).unwrap()]
        {
            let config = CrowdConfig { grid, ..config(relay.address) };
            let report = run(&config, &trace, None, &stop, |_| ()).unwrap();
            let verdict = report.verdict;
            let wrong = [verdict.missing, verdict.duplicates, verdict.unexpected];
            assert_eq!(wrong, [0; 3], "{mode:?}: {report:?}");
            delivered.push(verdict.delivered);
        }
    }
    let [one, two, one_periodic, two_periodic] = delivered[..] else { panic!("{delivered:?}") };
    assert!(two * 10 < one * 6 && two_periodic * 10 < one_periodic * 6, "{delivered:?}");
}

#[test]
fn dropped_sends_are_missing() {
    let relay = RelayThread::start(Mode::Immediate, Fault::Drop, 200);
    let report = walk(&relay, &crowd(60, 3.0));
    let dropped = relay.meddled.load(Ordering::Relaxed);
    assert!(
        report.verdict.missing > 0 && report.verdict.missing <= dropped,
        "{dropped} dropped: {report:?}"
    );
    // Few walkers unsubscribe at any time, so few of the dropped may be excused.
    assert!(report.verdict.missing * 2 > dropped, "{dropped} dropped: {report:?}");
    assert_eq!((report.verdict.duplicates, report.verdict.unexpected), (0, 0), "{report:?}");
}

#[test]
fn doubled_sends_are_duplicates() {
    let relay = RelayThread::start(Mode::Immediate, Fault::Double, 200);
    let report = walk(&relay, &crowd(60, 3.0));
    assert_eq!((report.verdict.missing, report.verdict.unexpected), (0, 0), "{report:?}");
    assert_eq!(report.verdict.duplicates, relay.meddled.load(Ordering::Relaxed), "{report:?}");
}

#[test]
fn sends_to_the_wrong_participant_are_unexpected() {
    let relay = RelayThread::start(Mode::Immediate, Fault::Misroute, 200);
    let report = walk(&relay, &crowd(60, 3.0));
    assert!(report.verdict.unexpected > 0, "{report:?}");
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
    let relay = RelayThread::start(Mode::Immediate, Fault::None, 30);
    let stop = AtomicBool::new(false);
    let result = run(&config(relay.address), &crowd(60, 3.0), None, &stop, |_| ());
    assert!(matches!(result, Err(CrowdError::Refused(_))), "30 of 60 were refused: {result:?}");
}

#[test]
fn a_crowd_that_cannot_keep_up_still_stops_when_told() {
    let relay = RelayThread::start(Mode::Immediate, Fault::None, 200);
    let trace = crowd(60, 2000.0);
    let stop = AtomicBool::new(false);
    let config = CrowdConfig { speed: 100_000.0, ..config(relay.address) };
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
