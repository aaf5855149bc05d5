//! The files of a dataset: in a folder or its `raw` folder, in a zip archive, or a single file. Hidden files, such as those that macOS adds
//! (`._NAME`, `__MACOSX`), are no part of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use kdgat_base::archive::{self, ArchiveError};
use kdgat_torch::allocator;
use zip::ZipArchive;
use zip::result::ZipError;

use super::error::DatasetError;
use super::settings::SETTINGS;
use super::{format, molecules, swc, table_file, xyz};

/// Largest size of an unpacked file of an archive, as a multiple of its packed size: real tables reach some hundred times.
const MOST_INFLATION: u64 = 1000;
/// Unpacked size that any file may have, in bytes: tables of few rows may be packed even better.
const SMALL_BYTES: u64 = 64 << 20;
/// Share of the memory limit that an unpacked file may take.
pub(super) const SHARE_OF_MEMORY: u64 = 4;

/// Folder of the downloaded files in the folder of a dataset of PyTorch Geometric.
const RAW: &str = "raw";
/// Folder of macOS's own files in an archive.
const MACOS: &str = "__MACOSX";

/// The files of a dataset.
pub(super) struct SourceFiles {
    root: PathBuf,
    content: Content,
    /// Names of the files, without folders.
    names: Vec<String>,
}

enum Content {
    /// Files of this folder, the root or its [`RAW`].
    Folder(PathBuf),
    /// The only file is the root itself.
    File,
    /// Full names of the members, in the order of `names`.
    Archive(Vec<String>),
}

impl SourceFiles {
    /// Lists the files of a folder or zip archive; folders within are not searched, except those of an archive, `raw` if the folder itself
    /// has no dataset, and then also folders of trees, whose files are named with their folder. An XYZ file or an npz file of molecules is alone.
    pub fn open(root: &Path) -> Result<Self, DatasetError> {
        if root.is_dir() {
            let (mut names, raw) = (names_in(root)?, root.join(RAW));
            // A tree beside the folders is refused by name: it has no class.
            let may_have_folders = |name: &String| name == SETTINGS || swc::is_swc(name) || !format::is_read(name);
            if names.iter().all(may_have_folders) {
                names.extend(trees_in_folders(root)?);
            }
            if !format::is_any(&names) && raw.is_dir() {
                let names = names_in(&raw)?;
                if format::is_any(&names) {
                    return Ok(Self { root: root.to_owned(), content: Content::Folder(raw), names });
                }
            }
            return Ok(Self { root: root.to_owned(), content: Content::Folder(root.to_owned()), names });
        }
        if xyz::is_xyz(&root.to_string_lossy()) || molecules::is_molecules(root) {
            let names = root.file_name().map(|name| name.to_string_lossy().into_owned()).into_iter().collect();
            return Ok(Self { root: root.to_owned(), content: Content::File, names });
        }
        let archive = open_archive(root)?;
        let mut members: Vec<String> =
            archive.file_names().filter(|name| !name.ends_with('/') && !is_hidden(name)).map(str::to_owned).collect();
        members.sort_unstable();
        let names =
            members.iter().map(|member| if swc::is_swc(member) { with_folder(member) } else { base_name(member) });
        let names = names.map(str::to_owned).collect();
        Ok(Self { root: root.to_owned(), content: Content::Archive(members), names })
    }

    /// The folder, archive or file.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// True if the dataset is a single file, which has nothing beside it.
    pub fn is_single(&self) -> bool {
        matches!(self.content, Content::File)
    }

    /// True if the dataset is a zip archive.
    pub fn is_archive(&self) -> bool {
        matches!(self.content, Content::Archive(_))
    }

    /// Refuses an archive with two files of one name, in different folders, that belong to a dataset. A tree's name has its innermost folder,
    /// its class.
    pub fn expect_distinct(&self) -> Result<(), DatasetError> {
        let Content::Archive(members) = &self.content else { return Ok(()) };
        let described = table_file::described(self)?.map_or_else(Vec::new, |dataset| {
            [Some(dataset.nodes), Some(dataset.edges), dataset.graphs].into_iter().flatten().collect()
        });
        let is_read = |name: &String| format::is_read(name) || described.contains(name);
        let mut seen = HashMap::new();
        for (name, member) in self.names.iter().zip(members).filter(|(name, _)| is_read(name)) {
            if let Some(other) = seen.insert(name, member) {
                let detail = format!(
                    "it holds two files {name}: {other} and {member}; unpack it and name the folder of one dataset"
                );
                return Err(DatasetError::Unusable { root: self.root.clone(), detail });
            }
        }
        Ok(())
    }

    /// Names of the files, without folders, in the order of their paths.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Path of a file; `None` for one in an archive.
    pub fn path_of(&self, name: &str) -> Option<PathBuf> {
        match &self.content {
            Content::Folder(folder) => Some(folder.join(name)),
            Content::File => Some(self.root.clone()),
            Content::Archive(_) => None,
        }
    }

    /// The content of a file; `None` if there is no such file.
    ///
    /// # Errors
    /// Those of [`read_with`](Self::read_with).
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, DatasetError> {
        self.read_with(name, |reader| {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map_err(DatasetError::io(&self.root)).map(|_| bytes)
        })
    }

    /// Reads a file as a stream: calls `read` with its content; returns `None` if there is no such file.
    ///
    /// # Errors
    /// A file that cannot be read, one of an archive that unpacks to too much, or an error of `read`.
    pub fn read_with<T>(
        &self,
        name: &str,
        read: impl FnOnce(&mut dyn Read) -> Result<T, DatasetError>,
    ) -> Result<Option<T>, DatasetError> {
        let Some(position) = self.names.iter().position(|found| found == name) else { return Ok(None) };
        let members = match &self.content {
            Content::Folder(folder) => return Self::read_file(&folder.join(name), read).map(Some),
            Content::File => return Self::read_file(&self.root, read).map(Some),
            Content::Archive(members) => members,
        };
        let mut archive = open_archive(&self.root)?;
        let member = archive.by_name(&members[position]).map_err(|error| damaged(&self.root, error))?;
        let most = most_unpacked(member.compressed_size(), allocator::stats().limit);
        let too_large = |size: u64| {
            let detail = format!(
                "{name} unpacks to more than {} MB ({size} bytes packed): at most {MOST_INFLATION} times its packed size and a quarter \
                 of the memory limit (--memory-limit) are read from an archive; if you trust it, unpack it and name the folder",
                most / 1_000_000
            );
            DatasetError::Unusable { root: self.root.clone(), detail }
        };
        let packed = member.compressed_size();
        if member.size() > most {
            return Err(too_large(packed));
        }
        // The member may be larger than it says.
        let mut limited = Limited { inner: member, left: most, exceeded: false };
        let result = read(&mut limited);
        if limited.exceeded { Err(too_large(packed)) } else { result.map(Some) }
    }

    fn read_file<T>(
        path: &Path,
        read: impl FnOnce(&mut dyn Read) -> Result<T, DatasetError>,
    ) -> Result<T, DatasetError> {
        read(&mut File::open(path).map_err(DatasetError::io(path))?)
    }
}

/// Largest size of an unpacked file of an archive, in bytes. A damaged or hostile archive may unpack to anything.
fn most_unpacked(packed_bytes: u64, memory_limit: u64) -> u64 {
    packed_bytes.saturating_mul(MOST_INFLATION).max(SMALL_BYTES).min(memory_limit / SHARE_OF_MEMORY)
}

/// A reader that fails beyond a number of bytes.
struct Limited<R> {
    inner: R,
    left: u64,
    exceeded: bool,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.exceeded |= count as u64 > self.left;
        if self.exceeded {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it unpacks to too much"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// Names of the files in a folder, ascending, without hidden ones.
fn names_in(folder: &Path) -> Result<Vec<String>, DatasetError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DatasetError::io(folder))? {
        let entry = entry.map_err(DatasetError::io(folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_file() && !is_hidden(&name) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Files of trees in the folders of a folder, ascending, with their folder's name.
fn trees_in_folders(root: &Path) -> Result<Vec<String>, DatasetError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root).map_err(DatasetError::io(root))? {
        let entry = entry.map_err(DatasetError::io(root))?;
        let folder = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !is_hidden(&folder) {
            let trees = names_in(&entry.path())?.into_iter().filter(|name| swc::is_swc(name));
            names.extend(trees.map(|name| format!("{folder}/{name}")));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// A member's name with the innermost of its folders.
fn with_folder(member: &str) -> &str {
    let name = base_name(member).len();
    let folders = member[..member.len() - name].trim_end_matches('/');
    let start = folders.rfind('/').map_or(0, |slash| slash + 1);
    if folders.is_empty() { base_name(member) } else { &member[start..] }
}

/// True for a hidden file, or one in a hidden folder.
fn is_hidden(member: &str) -> bool {
    member.split(['/', '\\']).any(|part| part == MACOS || (part.starts_with('.') && part != "." && part != ".."))
}

/// The part of a member's name after its folders.
fn base_name(member: &str) -> &str {
    member.rsplit(['/', '\\']).next().unwrap_or(member)
}

fn open_archive(root: &Path) -> Result<ZipArchive<BufReader<File>>, DatasetError> {
    let file = File::open(root).map_err(DatasetError::io(root))?;
    archive::open(file).map_err(|error| match error {
        ArchiveError::Io(source) => DatasetError::Io { path: root.to_owned(), source },
        other => unreadable(root, &other),
    })
}

fn damaged(root: &Path, error: ZipError) -> DatasetError {
    match error {
        ZipError::Io(source) if source.kind() != io::ErrorKind::InvalidData => {
            DatasetError::Io { path: root.to_owned(), source }
        }
        other => unreadable(root, &other),
    }
}

fn unreadable(root: &Path, error: &dyn std::error::Error) -> DatasetError {
    let detail = format!("it is no readable zip archive ({error}); download it again, or name an unpacked folder");
    DatasetError::Unusable { root: root.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    /// An archive of one file of zeros, and the number of bytes that are packed of it.
    fn zeros(size: u64) -> (tempfile::TempDir, PathBuf, u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.zip");
        let mut writer = ZipWriter::new(File::create(&path).unwrap());
        writer
            .start_file(
                "data/nodes.csv",
                SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated),
            )
            .unwrap();
        io::copy(&mut io::repeat(0).take(size), &mut writer).unwrap();
        writer.finish().unwrap().flush().unwrap();
        let packed = open_archive(&path).unwrap().by_name("data/nodes.csv").unwrap().compressed_size();
        (folder, path, packed)
    }

    #[test]
    fn what_an_archive_may_unpack_to_is_bounded_by_its_size_and_the_memory() {
        assert_eq!(most_unpacked(1, u64::MAX), SMALL_BYTES);
        assert_eq!(most_unpacked(1 << 20, u64::MAX), 1000 << 20);
        assert_eq!(most_unpacked(1 << 20, 400 << 20), 100 << 20);
        assert_eq!(most_unpacked(u64::MAX, u64::MAX), u64::MAX / 4);
    }

    #[test]
    fn a_member_that_unpacks_to_too_much_is_refused_before_it_is_read() {
        let (_folder, path, packed) = zeros(SMALL_BYTES + 1);
        assert!(packed * MOST_INFLATION < SMALL_BYTES, "{packed}");
        let files = SourceFiles::open(&path).unwrap();
        assert_eq!(files.names(), ["nodes.csv"]);
        let error =
            files.read_with("nodes.csv", |_| -> Result<(), _> { panic!("it is read") }).unwrap_err().to_string();
        assert!(error.contains("nodes.csv unpacks to more than 67 MB") && error.contains("name the folder"), "{error}");
        assert!(files.read("edges.csv").unwrap().is_none());
    }

    #[test]
    fn a_member_that_is_larger_than_it_says_is_refused_while_it_is_read() {
        let (_folder, path, _) = zeros(SMALL_BYTES + 1);
        let mut bytes = std::fs::read(&path).unwrap();
        let entry = bytes.windows(4).rposition(|bytes| bytes == b"PK\x01\x02").unwrap();
        bytes[entry + 24..entry + 28].copy_from_slice(&100u32.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        let files = SourceFiles::open(&path).unwrap();
        let mut most = 0;
        let read = files.read_with("nodes.csv", |reader| {
            let mut buffer = vec![0; 1 << 16];
            // As of a reader that hides the errors of what it reads.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                most += count as u64;
            }
            Ok(())
        });
        assert!(read.unwrap_err().to_string().contains("unpacks to more than"));
        assert!(most <= SMALL_BYTES, "{most}");
    }
}
