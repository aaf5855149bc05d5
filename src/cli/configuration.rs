//! `kdgat config`: the merged configuration, or the reference of all fields.

use std::process::ExitCode;

use anyhow::Result;

use super::commands::ConfigArgs;
use super::output;
use crate::config;

pub fn print(args: &ConfigArgs) -> Result<ExitCode> {
    let text = if args.reference {
        config::reference()
    } else {
        let loaded = args.settings.load()?;
        if args.json { format!("{:#}\n", config::to_json(&loaded)) } else { config::to_toml(&loaded) }
    };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}
