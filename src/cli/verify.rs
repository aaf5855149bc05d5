//! `kdgat data info --verify`: verifies the checksums of a graph store.

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
    // Standard output is for the table or JSON only.
    eprintln!(
        "{}: {} shards, {} of graphs: all checksums match",
        store.path().display(),
        shards.len(),
        format_bytes(bytes)
    );
    Ok(())
}
