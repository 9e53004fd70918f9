//! What keeps a client in its world that has joined through a controller. [`Keeper`] decides, for a client with a
//! runtime as for one without; [`Asker`] asks for it, and [`Following`] hears of the world's areas; [`Kept`] joins them
//! where there is no runtime.

mod apart;
mod following;
mod keeper;
mod question;

pub(crate) use apart::{Apart, Entered, Kept};
pub(crate) use following::Following;
pub(crate) use keeper::{Keeper, LEAVE_LIMIT};
pub(crate) use question::Asker;
