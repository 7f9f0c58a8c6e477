//! What a training writes for its report besides `config.toml`, `metrics.jsonl` and `report.json`: all of it may be
//! missing.

mod confusion;
mod environment;
mod event;
mod live;
mod rank_line;

pub use confusion::ConfusionMatrix;
pub use environment::Environment;
pub use event::{Event, EventKind};
pub use live::{Live, LiveRank, Phase, Vitals};
pub use rank_line::{RankLine, RankStep};
