//! Groupcast's figures 8 to 11: what a new way of sending gains, by the share of sending and by α.

use crate::send_cost::SendCost;
use crate::server::{Comparison, Evidence, Growth, Server, ServerError, ServerModel};
use serde::Serialize;

/// Two ways of sending, to be compared in both models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GainFigures {
    /// T, λ and b; its model does not matter.
    pub server: Server,
    /// The old way.
    pub old: SendCost,
    /// The new way.
    pub new: SendCost,
}

impl Default for GainFigures {
    /// The paper's: user- and kernel-groupcast on Linux/i386, 80 bytes.
    fn default() -> GainFigures {
        let server = Server::paper(ServerModel::Immediate);
        GainFigures { server, old: SendCost::PAPER_OLD, new: SendCost::PAPER_NEW }
    }
}

/// Figures 8 and 9. A gain is missing where sending has no time: that is so only with costs per
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GainByShare {
    /// f, measured at t = T.
    pub f: f64,
    /// k in the immediate model.
    pub immediate: Option<f64>,
    /// k in the periodic model.
    pub periodic: Option<f64>,
}

/// Figures 10 and 11. A gain is missing where sending has no time: that is so only with costs per
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GainByRatio {
    /// α.
    pub alpha: f64,
    /// k in the immediate model.
    pub immediate: Option<f64>,
    /// k in the periodic model.
    pub periodic: Option<f64>,
}

impl GainFigures {
    /// Figure 8 (constant) or 9 (linear): f from 0.01 to 1.
    ///
    /// # Errors
    /// A number out of its range.
    pub fn by_share(&self, growth: Growth) -> Result<Vec<GainByShare>, ServerError> {
        let row = |percent: u32| {
            let f = f64::from(percent) / 100.0;
            let time_ms = self.server.period_ms;
            let evidence =
                Evidence::Measured { send_share: f, time_ms, users: None, messages: None };
            let [immediate, periodic] = self.gains(growth, evidence)?;
            Ok(GainByShare { f, immediate, periodic })
        };
        (1..=100).map(row).collect()
    }

    /// Figure 10 (constant) or 11 (linear): α from 0.1 to 10, twenty-five a decade.
    ///
    /// # Errors
    /// A number out of its range.
    pub fn by_ratio(&self, growth: Growth) -> Result<Vec<GainByRatio>, ServerError> {
        let row = |step: i32| {
            let alpha = 10.0_f64.powf(f64::from(step) / 25.0);
            let [immediate, periodic] = self.gains(growth, Evidence::Ratio(alpha))?;
            Ok(GainByRatio { alpha, immediate, periodic })
        };
        (-25..=25).map(row).collect()
    }

    fn gains(&self, growth: Growth, evidence: Evidence) -> Result<[Option<f64>; 2], ServerError> {
        let gain = |model| match self.compared(model, growth, evidence) {
            Ok(row) => Ok(Some(row.gain)),
            Err(ServerError::NoTime { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        Ok([gain(ServerModel::Immediate)?, gain(ServerModel::Periodic)?])
    }

    fn compared(
        &self,
        model: ServerModel,
        growth: Growth,
        evidence: Evidence,
    ) -> Result<Comparison, ServerError> {
        let server = Server { model, ..self.server };
        let other = server.other_work(growth, evidence, self.old)?;
        server.compare(other, self.old, self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_figures_end_at_the_bounds() {
        let figures = GainFigures::default();
        let speedup = SendCost::PAPER_OLD.per_user(80.0) / SendCost::PAPER_NEW.per_user(80.0);
        for growth in [Growth::Constant, Growth::Linear] {
            let rows = figures.by_share(growth).unwrap();
            let last = rows[99];
            assert_eq!((rows.len(), last.f), (100, 1.0));
            assert!((last.immediate.unwrap() - speedup.sqrt()).abs() < 1e-9);
            assert!((last.periodic.unwrap() - speedup).abs() < 1e-9);
        }
    }

    #[test]
    fn the_papers_ratios_span_two_decades() {
        let figures = GainFigures::default();
        let rows = figures.by_ratio(Growth::Constant).unwrap();
        let (first, last) = (rows[0], rows[50]);
        assert!((first.alpha - 0.1).abs() < 1e-12 && (last.alpha - 10.0).abs() < 1e-9);
        // α = 0.1 is f = 1/11: k = 1 / (1 − f + f/r).
        assert!((first.periodic.unwrap() - 1.062).abs() < 1e-3, "{first:?}");
        // N² + 10N = T/s the old way, N² + 10rN = rT/s the new way.
        assert!((first.immediate.unwrap() - 1.598).abs() < 1e-3, "{first:?}");
    }

    #[test]
    fn a_gain_that_no_server_has_is_left_out() {
        let old = SendCost { per_message: 1.0, ..SendCost::PAPER_OLD };
        let rows =
            GainFigures { old, ..GainFigures::default() }.by_share(Growth::Constant).unwrap();
        // A hundredth of 33.3 ms is less than the millisecond.
        assert_eq!((rows[0].periodic, rows[3].periodic.is_some()), (None, true));
        let server = Server { period_ms: -1.0, ..Server::paper(ServerModel::Periodic) };
        assert!(GainFigures { server, ..GainFigures::default() }.by_ratio(Growth::Linear).is_err());
    }
}
