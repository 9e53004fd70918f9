//! `canopy plan cost`: what a user costs a month.

use crate::output::print_line;
use anyhow::{Context, anyhow};
use canopy_plan::{CostEstimate, CostInputs};
use clap::Args;
use std::path::PathBuf;

/// Rough cost of a user a month, after figure 1 of the Forest paper; its prices of 2009 are the
/// defaults.
#[derive(Args)]
pub(crate) struct CostCommand {
    /// Today's prices and loads, TOML; --print-inputs shows what can be set
    #[arg(long, value_name = "FILE.toml")]
    inputs: Option<PathBuf>,
    /// Print the inputs in force as TOML instead of the estimate
    #[arg(long, conflicts_with = "json")]
    print_inputs: bool,
    /// Print the estimate as JSON, with its inputs
    #[arg(long)]
    json: bool,
}

impl CostCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let inputs = match &self.inputs {
            None => CostInputs::default(),
            Some(path) => {
                let name = path.display();
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read the inputs {name}; check --inputs"))?;
                CostInputs::from_toml(&text).map_err(|problem| anyhow!("{name}: {problem}"))?
            }
        };
        let estimate = inputs.estimate();
        if self.print_inputs {
            print_line(toml::to_string(&inputs)?.trim_end())?;
        } else if self.json {
            print_line(serde_json::json!({ "inputs": inputs, "estimate": estimate }))?;
        } else {
            print_line(in_words(&estimate))?;
        }
        Ok(())
    }
}

fn in_words(estimate: &CostEstimate) -> String {
    let mut text = format!(
        "{:<22} {:>10} {:>13} {:>15} {:>14}\n",
        "", "unit cost", "monthly cost", "users supported", "cost per user"
    );
    for row in &estimate.rows {
        text += &format!(
            "{:<22} {:>10} {:>13} {:>15.0} {:>14}\n",
            row.item,
            row.unit_cost.map_or(String::new(), |cost| format!("${cost:.0}")),
            format!("${:.0}", row.monthly_cost),
            row.users_supported,
            format!("${:.2}", row.cost_per_user),
        );
    }
    text + &format!("{:<22} {:>55}", "together", format!("${:.2}", estimate.total_per_user))
}
