//! Small JSON files with a checksum: one line with format, version and checksum, then the content.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::SweepError;
use kdgat_base::files;

/// Format version of all files of a sweep.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    checksum: String,
}

/// Writes a file atomically.
pub fn write(path: &Path, format: &str, content: &impl Serialize) -> Result<(), SweepError> {
    let failed = |error: serde_json::Error| SweepError::file(path, "write")(error.into());
    let body = serde_json::to_string_pretty(content).map_err(failed)?;
    let header = Header { format: format.to_owned(), version: VERSION, checksum: checksum(&body) };
    let header = serde_json::to_string(&header).map_err(failed)?;
    files::write_atomically(path, format!("{header}\n{body}").as_bytes()).map_err(SweepError::file(path, "write"))
}

/// Reads a file; `None` if it does not exist.
///
/// # Errors
/// If the file is damaged, has another format, or was written by a newer version.
pub fn read<T: DeserializeOwned>(path: &Path, format: &str) -> Result<Option<T>, SweepError> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(SweepError::file(path, "read"))?,
    };
    let damaged = |found: String| SweepError::Damaged { path: path.to_owned(), found };
    let text = String::from_utf8(bytes).map_err(|_| damaged("not UTF-8 text".to_owned()))?;
    let (header, body) = text.split_once('\n').ok_or_else(|| damaged("ends after its first line".to_owned()))?;
    let header: Header = serde_json::from_str(header).map_err(|error| damaged(format!("bad first line: {error}")))?;
    if header.format != format {
        return Err(damaged(format!("format `{}`, expected `{format}`", header.format)));
    }
    if header.version > VERSION {
        return Err(SweepError::Usage(format!(
            "{}: written by a newer kdgat (format version {}, this program reads up to {VERSION}); use that version",
            path.display(),
            header.version
        )));
    }
    let found = checksum(body);
    if header.checksum != found {
        return Err(damaged(format!("damaged (checksum {found}, expected {})", header.checksum)));
    }
    serde_json::from_str(body).map(Some).map_err(|error| damaged(format!("invalid content: {error}")))
}

fn checksum(body: &str) -> String {
    blake3::hash(body.as_bytes()).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(read::<f64>(&path, "number").unwrap(), None);
        let number = 0.1 + 0.2;
        write(&path, "number", &number).unwrap();
        assert_eq!(read::<f64>(&path, "number").unwrap(), Some(number));
        assert!(read::<f64>(&path, "text").unwrap_err().to_string().contains("expected"));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let said = read::<f64>(&path, "number").unwrap_err().to_string();
        assert!(said.contains("damaged") && said.contains("state.json"), "{said}");
    }
}
