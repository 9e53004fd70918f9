//! What a comtree's participants may send together, and a neighbour over a branch, where the file says
//! it of one of them.

use super::file::Table;
use super::limits::{MOST_BITS, MOST_PACKETS};
use super::sources::{Sources, within};
use canopy_overlay::OwnBudgets;
use canopy_relay::{BranchConfig, Budget, ComtreeConfig};

/// The budgets that the tables say, of comtrees and branches that have been checked already. A comtree
/// has those of `[limits]` where its table says nothing.
pub(super) fn check_own_budgets(
    sources: &Sources,
    default: &Budget,
    comtrees: &[ComtreeConfig],
    branches: &[BranchConfig],
) -> anyhow::Result<OwnBudgets> {
    let mut own = OwnBudgets { at_first: *default, ..OwnBudgets::default() };
    own.comtrees.extend(comtrees.iter().map(|one| (one.comtree, *default)));
    // They were read in the order of the tables.
    let mut branches = branches.iter();
    for (table, config) in sources.comtree_tables().iter().zip(comtrees) {
        own.comtrees.insert(config.comtree, budget(table, default)?);
        for (table, branch) in table.tables("branches").iter().zip(branches.by_ref()) {
            let of_branch = budget(table, &Budget::default())?;
            if of_branch != Budget::default() {
                own.branches.insert(branch.id, of_branch);
            }
            if let Some(given) = table.number("guaranteed_bits") {
                let bits = given.check(|value| within(value, &(0..=MOST_BITS)))?;
                own.guarantees.insert(branch.id, bits);
            }
        }
    }
    Ok(own)
}

/// The four numbers of a table; 0 is no limit.
fn budget(table: &Table, default: &Budget) -> anyhow::Result<Budget> {
    let number = |key: &str, most: u64, default: u64| match table.number(key) {
        Some(given) => given.check(|value| within(value, &(0..=most))),
        None => Ok(default),
    };
    Ok(Budget {
        up_packets: number("up_packets", MOST_PACKETS, default.up_packets)?,
        up_bits: number("up_bits", MOST_BITS, default.up_bits)?,
        down_packets: number("down_packets", MOST_PACKETS, default.down_packets)?,
        down_bits: number("down_bits", MOST_BITS, default.down_bits)?,
    })
}
