//! Rounds: every engine sends the same to the same receivers, one after the other.

use super::bed::Bed;
use super::cases::Case;
use super::count::{Counter, Expected};
use super::report::Row;
use crate::noise::{Steal, ksoftirqd, median};
use canopy_batch::{Segments, SendBatch};
use canopy_engines::{Engine, EngineChoice, EngineName};
use canopy_net::{
    Clock, Outlet, ReceiverSet, SendReport, Socket, SocketOptions, process_cpu_time,
    thread_cpu_time,
};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

/// How the rounds are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) rounds: u32,
    /// Processor time that each engine takes in a round, at least.
    pub(super) measured: Duration,
    /// The sender's processor.
    pub(super) send_on: usize,
}

/// An engine that takes part.
struct Contender {
    name: EngineName,
    outlet: Outlet<Engine>,
    socket: Socket,
}

/// What one engine did in one round.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    cpu: Duration,
    wall: Duration,
    copies: u64,
    lost: u64,
    doubled: u64,
    report: SendReport,
}

impl Spent {
    fn ns_per_copy(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.copies.max(1) as f64
    }
}

/// The sender: one thread in its namespace, on its processor, with all engines.
pub(super) struct Sender<'a> {
    plan: Plan,
    clock: SenderClock,
    contenders: Vec<Contender>,
    counter: &'a mut dyn Counter,
    window: u64,
    targets: &'a [SocketAddr],
    /// What is sent: made once for a case, as a relay makes it once for a flush.
    batch: SendBatch,
}

/// An engine that takes no part, and why.
pub(super) type Absent = (EngineName, String);

/// Calls `work` with a sender on a thread of its own in the bed's namespace.
pub(super) fn with_sender<T: Send>(
    bed: &mut Bed,
    plan: Plan,
    engines: &[EngineName],
    folder: &Path,
    work: impl FnOnce(Sender<'_>, Vec<Absent>) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let Bed { near, local, targets, counter, window, not_installed, .. } = bed;
    near.run(|| {
        canopy_net::pin_thread(plan.send_on)?;
        let mut contenders = Vec::new();
        let mut left_out = Vec::new();
        for &name in engines {
            if let Some(why) = not_installed.as_ref().filter(|_| name.clones()) {
                left_out.push((name, why.clone()));
                continue;
            }
            match open(name, *local, folder) {
                Ok(contender) => contenders.push(contender),
                Err(error) => left_out.push((name, format!("{error:#}"))),
            }
        }
        let clock = SenderClock::new(plan.send_on, counter.has_thread());
        let (counter, window) = (counter.as_mut(), *window);
        let batch = SendBatch::new();
        let sender = Sender { plan, clock, contenders, counter, window, targets, batch };
        work(sender, left_out)
    })?
}

fn open(name: EngineName, local: IpAddr, folder: &Path) -> anyhow::Result<Contender> {
    let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
    let socket = Socket::bind((local, 0).into(), &options)?;
    let engine = Engine::open_in(folder, EngineChoice::Named(name), &socket)?;
    Ok(Contender { name, outlet: Outlet::new(engine), socket })
}

impl Sender<'_> {
    /// Measures every engine in one case.
    pub(super) fn measure(&mut self, case: &Case) -> anyhow::Result<Vec<Row>> {
        let bytes = vec![0x5a; case.segments * case.bytes];
        let set: ReceiverSet = self.targets[..case.n].iter().copied().collect();
        self.batch.clear();
        set.push_to(&mut self.batch, Segments::new(&bytes, case.bytes)?);
        let mut repeats = Vec::new();
        for number in 0..self.contenders.len() {
            repeats.push(self.repeats(number, case)?);
        }
        let mut rounds: Vec<Vec<Spent>> = Vec::new();
        let mut discarded = 0;
        // A noisy machine may cost rounds, but not without end.
        while rounds.len() < self.plan.rounds as usize && discarded < 2 * self.plan.rounds {
            let steal = Steal::read();
            let mut spent = vec![Spent::default(); repeats.len()];
            // Nobody is always first.
            for turn in 0..repeats.len() {
                let number = (turn + rounds.len()) % repeats.len();
                spent[number] = self.send(number, case, repeats[number])?;
            }
            if steal.disturbed() {
                discarded += 1;
            } else {
                rounds.push(spent);
            }
        }
        let names: Vec<EngineName> = self.contenders.iter().map(|one| one.name).collect();
        Ok(summarise(case, &names, &rounds, discarded))
    }

    /// How often an engine must send to fill the time to be measured in a round. What it keeps of a
    /// set of receivers is made here, before anything is measured.
    fn repeats(&mut self, number: usize, case: &Case) -> anyhow::Result<u64> {
        let mut repeats = 1;
        self.send(number, case, repeats)?;
        loop {
            let spent = self.send(number, case, repeats)?.cpu.max(Duration::from_nanos(100));
            let wanted = self.plan.measured.as_nanos() as f64 / spent.as_nanos() as f64;
            // A tenth of the time is enough to tell the whole.
            if wanted <= 10.0 {
                return Ok((repeats as f64 * wanted).ceil() as u64);
            }
            repeats *= 4;
        }
    }

    /// Sends so often, no more at once than may be on its way, and counts what arrives.
    fn send(&mut self, number: usize, case: &Case, repeats: u64) -> anyhow::Result<Spent> {
        let Contender { outlet, socket, .. } = &mut self.contenders[number];
        let at_once = (self.window / case.copies()).max(1);
        let mut spent = Spent::default();
        let mut rest = repeats;
        let clock = Clock::start();
        while rest > 0 {
            let sends = rest.min(at_once);
            let start = Instant::now();
            let cpu = self.clock.now();
            for _ in 0..sends {
                spent.report.add(outlet.send(socket, clock.now(), &self.batch));
                if outlet.wants().is_some() {
                    spent.report.add(outlet.flush(socket, &clock));
                }
            }
            spent.cpu += self.clock.now().saturating_sub(cpu);
            spent.wall += start.elapsed();
            let copies = case.copies() * sends;
            spent.copies += copies;
            let expected = Expected { n: case.n, bytes: case.bytes, copies };
            let settled = self.counter.settle(expected)?;
            spent.lost += settled.lost;
            spent.doubled += settled.doubled;
            rest -= sends;
        }
        Ok(spent)
    }
}

/// The processor time that is charged to the sender: its own, with what the kernel does in its
/// context, and that of its processor's ksoftirqd, which takes over when that is much.
#[derive(Debug)]
struct SenderClock {
    /// Where nothing else runs in this process, all of it counts: an engine's helper threads too.
    process: Option<u32>,
    ksoftirqd: Option<u32>,
}

impl SenderClock {
    fn new(processor: usize, others_work: bool) -> SenderClock {
        let process = (!others_work).then(std::process::id);
        SenderClock { process, ksoftirqd: ksoftirqd(processor) }
    }

    fn now(&self) -> Duration {
        let of = |process: u32| process_cpu_time(process).unwrap_or_default();
        self.process.map_or_else(thread_cpu_time, of) + self.ksoftirqd.map_or(Duration::ZERO, of)
    }
}

fn summarise(case: &Case, names: &[EngineName], rounds: &[Vec<Spent>], discarded: u32) -> Vec<Row> {
    let row = |(place, name): (usize, &EngineName)| {
        let mine: Vec<Spent> = rounds.iter().map(|round| round[place]).collect();
        let of = |value: fn(&Spent) -> f64| median(&mine.iter().map(value).collect::<Vec<_>>());
        let ratios: Vec<f64> = rounds
            .iter()
            .map(|round| round[0].ns_per_copy() / round[place].ns_per_copy())
            .collect();
        Row {
            sink: case.sink,
            engine: name.name(),
            n: case.n,
            bytes: case.bytes,
            segments: case.segments,
            ns_per_copy: of(Spent::ns_per_copy),
            copies_per_s: of(|spent| spent.copies as f64 / spent.wall.as_secs_f64()),
            ratio_to_sendto: median(&ratios),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            copies: mine.iter().map(|spent| spent.copies).sum(),
            lost: mine.iter().map(|spent| spent.lost).sum(),
            doubled: mine.iter().map(|spent| spent.doubled).sum(),
            fallbacks: mine.iter().map(|spent| spent.report.fallbacks).sum(),
            rounds: rounds.len(),
            rounds_discarded: discarded,
        }
    };
    if rounds.is_empty() { Vec::new() } else { names.iter().enumerate().map(row).collect() }
}
