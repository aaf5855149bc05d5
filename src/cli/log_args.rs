//! Arguments of commands that read a log or a stream: format, interface, unit of times, and limit on bad rows.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::log_format::LogFormatParser;
use crate::can::{Format, ReadOptions, TimeUnit};
use crate::config::Config;
use crate::detect::SourceOptions;

/// How to read a log or a stream.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// Format of the log (default: recognised from its content)
    #[arg(long, value_name = "FORMAT", value_parser = LogFormatParser)]
    pub format: Option<Format>,
    /// Interface or channel whose frames are read, such as can0; a log with frames of several is refused without it
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Unit of the log's times (default: seconds; a log whose times cannot be those of a bus is refused)
    #[arg(long, value_name = "UNIT", value_parser = time_unit())]
    pub time_unit: Option<TimeUnit>,
    /// Largest share of a log's rows that may be malformed; beyond it the log is refused. A live stream goes on, with a warning
    // Not the name of the configuration's field: these commands read no configuration.
    #[arg(long = "max-reject-share", value_name = "SHARE", default_value_t = Config::default().data.max_reject_share, value_parser = share)]
    pub most_rejected: f64,
}

fn time_unit() -> impl TypedValueParser<Value = TimeUnit> {
    PossibleValuesParser::new(TimeUnit::ALL.map(TimeUnit::name)).try_map(|name| name.parse::<TimeUnit>())
}

/// Parses a share from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    number.ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

impl LogArgs {
    /// Settings for reading the log.
    pub fn options(&self) -> SourceOptions {
        let read = ReadOptions { interface: self.interface.clone(), time_unit: self.time_unit, needs_labels: false };
        SourceOptions { format: self.format, read, max_reject_share: self.most_rejected }
    }
}
