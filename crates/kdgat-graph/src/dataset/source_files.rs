//! The files of a dataset: in a folder, in a zip archive, or a single file.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::result::ZipError;

use super::error::DatasetError;
use super::xyz;

/// Largest size of one unpacked file of an archive: a damaged or hostile archive may unpack to anything.
const MOST_BYTES: u64 = 16 << 30;

/// The files of a dataset.
pub(super) struct SourceFiles {
    root: PathBuf,
    content: Content,
    /// Names of the files, without folders.
    names: Vec<String>,
}

enum Content {
    Folder,
    /// The only file is the root itself.
    File,
    /// Full names of the members, in the order of `names`.
    Archive(Vec<String>),
}

impl SourceFiles {
    /// Lists the files of a folder or zip archive; folders within are not searched, except those of an archive. An XYZ file is alone.
    pub fn open(root: &Path) -> Result<Self, DatasetError> {
        if root.is_dir() {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(root).map_err(DatasetError::io(root))? {
                let entry = entry.map_err(DatasetError::io(root))?;
                if entry.path().is_file() {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
            names.sort_unstable();
            return Ok(Self { root: root.to_owned(), content: Content::Folder, names });
        }
        if xyz::is_xyz(&root.to_string_lossy()) {
            let names = root.file_name().map(|name| name.to_string_lossy().into_owned()).into_iter().collect();
            return Ok(Self { root: root.to_owned(), content: Content::File, names });
        }
        let archive = open_archive(root)?;
        let mut members: Vec<String> =
            archive.file_names().filter(|name| !name.ends_with('/')).map(str::to_owned).collect();
        members.sort_unstable();
        let names = members.iter().map(|member| base_name(member).to_owned()).collect();
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

    /// Names of the files, without folders, ascending.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The content of a file; `None` if there is no such file.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, DatasetError> {
        let Some(position) = self.names.iter().position(|found| found == name) else { return Ok(None) };
        match &self.content {
            Content::Folder => {
                let path = self.root.join(name);
                std::fs::read(&path).map(Some).map_err(DatasetError::io(&path))
            }
            Content::File => std::fs::read(&self.root).map(Some).map_err(DatasetError::io(&self.root)),
            Content::Archive(members) => {
                let mut archive = open_archive(&self.root)?;
                let member = archive.by_name(&members[position]).map_err(|error| damaged(&self.root, error))?;
                let mut bytes = Vec::new();
                let read = member.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(DatasetError::io(&self.root))?;
                if read as u64 > MOST_BYTES {
                    let detail = format!(
                        "{name} unpacks to more than {MOST_BYTES} bytes; unpack the archive and name the folder"
                    );
                    return Err(DatasetError::Unusable { root: self.root.clone(), detail });
                }
                Ok(Some(bytes))
            }
        }
    }
}

/// The part of a member's name after its folders.
fn base_name(member: &str) -> &str {
    member.rsplit(['/', '\\']).next().unwrap_or(member)
}

fn open_archive(root: &Path) -> Result<ZipArchive<BufReader<File>>, DatasetError> {
    let file = File::open(root).map_err(DatasetError::io(root))?;
    ZipArchive::new(BufReader::new(file)).map_err(|error| damaged(root, error))
}

fn damaged(root: &Path, error: ZipError) -> DatasetError {
    match error {
        ZipError::Io(source) if source.kind() != io::ErrorKind::InvalidData => {
            DatasetError::Io { path: root.to_owned(), source }
        }
        other => DatasetError::Unusable {
            root: root.to_owned(),
            detail: format!("it is no readable zip archive ({other}); download it again, or name an unpacked folder"),
        },
    }
}
