//! The machine's noise: rounds that the hypervisor disturbed, and values that hold in spite of it.

/// Rounds with a larger share of stolen time don't count.
const MAX_STEAL: f64 = 0.05;

/// Time that the hypervisor took, of all time.
pub(super) struct Steal {
    stolen: u64,
    total: u64,
}

impl Steal {
    /// What it took until now.
    pub(super) fn read() -> Steal {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest time is part of user.
        let times: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|t| t.parse().ok()).collect();
        Steal { stolen: times.get(7).copied().unwrap_or(0), total: times.iter().sum() }
    }

    /// Whether it has since taken too much for a round to count.
    pub(super) fn disturbed(&self) -> bool {
        let now = Steal::read();
        let total = now.total.saturating_sub(self.total).max(1);
        now.stolen.saturating_sub(self.stolen) as f64 / total as f64 > MAX_STEAL
    }
}

/// The middle value; of an even number, the lower of the two.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// The kernel thread that does a processor's receive work when there is much of it.
pub(super) fn ksoftirqd(processor: usize) -> Option<u32> {
    let name = format!("ksoftirqd/{processor}");
    let is_it = |process: &u32| {
        std::fs::read_to_string(format!("/proc/{process}/comm"))
            .is_ok_and(|comm| comm.trim() == name)
    };
    let entries = std::fs::read_dir("/proc").ok()?;
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(is_it)
}
