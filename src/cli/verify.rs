//! `kdgat data info --verify`: whether a graph store still holds what was written.

use anyhow::Result;

use crate::config::Config;
use crate::distill::planner::format_bytes;
use crate::stage;

/// Reads every byte of the configured dataset's store; damage is an error that names the shard.
pub fn store(config: &Config) -> Result<()> {
    let store = stage::open_store(config)?;
    store.verify()?;
    let shards = &store.manifest().shards;
    let bytes = shards.iter().map(|shard| shard.bytes).sum();
    // Not on standard output, which is the table or JSON alone.
    eprintln!(
        "{}: {} shards, {} of graphs: all as they were written",
        store.path().display(),
        shards.len(),
        format_bytes(bytes)
    );
    Ok(())
}
