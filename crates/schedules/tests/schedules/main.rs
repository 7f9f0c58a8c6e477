//! Schedules from outside: what theory says of them, what can be wrong, how they look.

mod balance;
mod deadlock;
mod drawing;
mod measured;
mod messages;
mod order;
mod theory;
