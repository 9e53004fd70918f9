//! What a user costs a month: servers, relays, bandwidth (Forest §2.3, figure 1).

use serde::{Deserialize, Serialize};

/// What the estimate is made from. The defaults are the paper's, of 2009.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostInputs {
    /// Buying and installing a server, dollars.
    pub server_price: f64,
    /// Buying and installing a relay, dollars.
    pub router_price: f64,
    /// Months until either is replaced.
    pub lifetime_months: f64,
    /// Watts of either, with what cools it.
    pub power_watts: f64,
    /// Dollars a kilowatt hour.
    pub power_price: f64,
    /// Hours of power a month.
    pub hours_a_month: f64,
    /// Users that a server simulates.
    pub users_a_server: f64,
    /// Packets that a user's server sends a second.
    pub packets_a_second: f64,
    /// Bytes of a packet.
    pub packet_bytes: f64,
    /// Packets that a relay forwards a second.
    pub router_packets_a_second: f64,
    /// Relays that a packet passes, all its copies together.
    pub routers_a_packet: f64,
    /// Wide-area links that a packet passes, all its copies together.
    pub links_a_packet: f64,
    /// Dollars a month for 1 Mbit/s of wide-area bandwidth.
    pub bandwidth_price: f64,
}

impl Default for CostInputs {
    fn default() -> CostInputs {
        CostInputs {
            server_price: 2000.0,
            router_price: 2000.0,
            lifetime_months: 24.0,
            power_watts: 400.0,
            power_price: 0.069,
            hours_a_month: 730.0,
            users_a_server: 50.0,
            packets_a_second: 20.0,
            packet_bytes: 250.0,
            router_packets_a_second: 200_000.0,
            routers_a_packet: 10.0,
            links_a_packet: 5.0,
            bandwidth_price: 10.0,
        }
    }
}

/// One row of figure 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostRow {
    /// What it is.
    pub item: &'static str,
    /// Dollars to buy one, if it is bought.
    pub unit_cost: Option<f64>,
    /// Dollars a month for one.
    pub monthly_cost: f64,
    /// Users that one serves.
    pub users_supported: f64,
    /// Dollars a month for each user.
    pub cost_per_user: f64,
}

/// Figure 1 for other inputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostEstimate {
    /// Servers, relays, bandwidth.
    pub rows: [CostRow; 3],
    /// Dollars a month for each user, of all.
    pub total_per_user: f64,
}

impl CostInputs {
    /// Reads inputs from TOML; what is not given is the paper's.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub fn from_toml(text: &str) -> Result<CostInputs, String> {
        let inputs: CostInputs = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or("", |span| &text[..span.start.min(text.len())]);
            format!("line {}: {}", before.matches('\n').count() + 1, error.message())
        })?;
        inputs.check()?;
        Ok(inputs)
    }

    /// Refuses what divides by nothing and what is no quantity.
    fn check(&self) -> Result<(), String> {
        let quantities = [
            ("server_price", self.server_price, false),
            ("router_price", self.router_price, false),
            ("lifetime_months", self.lifetime_months, true),
            ("power_watts", self.power_watts, false),
            ("power_price", self.power_price, false),
            ("hours_a_month", self.hours_a_month, false),
            ("users_a_server", self.users_a_server, true),
            ("packets_a_second", self.packets_a_second, true),
            ("packet_bytes", self.packet_bytes, true),
            ("router_packets_a_second", self.router_packets_a_second, true),
            ("routers_a_packet", self.routers_a_packet, true),
            ("links_a_packet", self.links_a_packet, true),
            ("bandwidth_price", self.bandwidth_price, false),
        ];
        for (name, value, divides) in quantities {
            let fits = value.is_finite() && if divides { value > 0.0 } else { value >= 0.0 };
            if !fits {
                let least = if divides { "more than 0" } else { "0 or more" };
                return Err(format!("{name} = {value} is out of range; give {least}"));
            }
        }
        Ok(())
    }

    /// The estimate.
    pub fn estimate(&self) -> CostEstimate {
        let power = self.power_watts / 1000.0 * self.hours_a_month * self.power_price;
        let machine = |item, price: f64, users: f64| {
            let monthly_cost = price / self.lifetime_months + power;
            let cost_per_user = monthly_cost / users;
            CostRow {
                item,
                unit_cost: Some(price),
                monthly_cost,
                users_supported: users,
                cost_per_user,
            }
        };
        let forwarded = self.packets_a_second * self.routers_a_packet;
        let megabits = self.packets_a_second * self.packet_bytes * 8.0 * self.links_a_packet / 1e6;
        let bandwidth = CostRow {
            item: "bandwidth (1 Mbit/s)",
            unit_cost: None,
            monthly_cost: self.bandwidth_price,
            users_supported: 1.0 / megabits,
            cost_per_user: self.bandwidth_price * megabits,
        };
        let rows = [
            machine("server", self.server_price, self.users_a_server),
            machine("router", self.router_price, self.router_packets_a_second / forwarded),
            bandwidth,
        ];
        CostEstimate { rows, total_per_user: rows.iter().map(|row| row.cost_per_user).sum() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_give_the_papers_figure() {
        let CostEstimate { rows, total_per_user } = CostInputs::default().estimate();
        let cents = rows.map(|row| (row.cost_per_user * 100.0).round());
        assert_eq!(cents, [207.0, 10.0, 200.0]);
        assert_eq!(rows.map(|row| row.users_supported.round()), [50.0, 1000.0, 5.0]);
        assert_eq!(rows.map(|row| row.monthly_cost.round()), [103.0, 103.0, 10.0]);
        assert!((total_per_user - 4.17).abs() < 0.01);
    }

    #[test]
    fn other_inputs_come_from_a_file() {
        let inputs = CostInputs::from_toml("bandwidth_price = 0.5\nusers_a_server = 200").unwrap();
        assert!((inputs.estimate().rows[2].cost_per_user - 0.1).abs() < 1e-9);
        let cases = [
            ("bandwith_price = 1", "line 1: unknown field `bandwith_price`"),
            ("\nusers_a_server = 0", "users_a_server = 0 is out of range; give more than 0"),
            ("power_watts = nan", "power_watts = NaN is out of range"),
        ];
        for (text, expected) in cases {
            let error = CostInputs::from_toml(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
