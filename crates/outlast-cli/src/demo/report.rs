//! The report of `make_report`: a new file, written once, also when the call runs again after a crash.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::files::{Folder, hex_digest};

/// A report that was written.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Report {
    /// The file that it is in.
    file: PathBuf,
    /// Its title.
    title: String,
    /// How many files it lists.
    files: usize,
    /// Its size.
    bytes: usize,
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum Format {
    Markdown,
    Json,
}

/// Checks that a report can be written to `file`, before anyone is bothered with questions about it.
///
/// # Errors
/// A sentence for the caller.
pub(super) fn check(file: &Path) -> Result<(), String> {
    if file.file_name().is_none() || file.to_string_lossy().ends_with(std::path::is_separator) {
        return Err(format!("{} is not the name of a file", file.display()));
    }
    match fs::symlink_metadata(file) {
        // An earlier run of this very call may have written it; which call it was is seen once the answers are known.
        Ok(_) if read(file).is_some_and(|there| there.contains(Stamp::SIGN)) => Ok(()),
        Ok(_) => Err(exists(file)),
        Err(_) => temporary(file).map(drop),
    }
}

/// Writes the report whole, or not at all. A file that is there stays as it is; when the same call with the same answers
/// wrote it, as before a crash that came between the writing and the result, that is the report, whatever has happened in
/// the folder since.
///
/// # Errors
/// A sentence for the caller.
pub(super) fn write(file: &Path, title: &str, format: Format, folder: &Folder) -> Result<Report, String> {
    let stamp = Stamp::new(file, title, format, folder);
    let report = |files, bytes| Report { file: file.to_owned(), title: title.to_owned(), files, bytes };
    let contents = format.contents(title, &stamp, folder);
    let mut new = temporary(file)?;
    io::Write::write_all(&mut new, contents.as_bytes()).map_err(|error| failed(file, &error))?;
    new.as_file().sync_all().map_err(|error| failed(file, &error))?;
    match new.persist_noclobber(file) {
        Ok(_) => Ok(report(folder.files.len(), contents.len())),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
            let there = read(file).and_then(|there| Some(report(stamp.files_in(&there)?, there.len())));
            there.ok_or_else(|| exists(file))
        }
        Err(error) => Err(failed(file, &error.error)),
    }
}

fn exists(file: &Path) -> String {
    format!("{} exists already and is left as it is", file.display())
}

/// A file of no name yet in the folder of `file`, which goes when it is dropped.
fn temporary(file: &Path) -> Result<tempfile::NamedTempFile, String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::NamedTempFile::new_in(folder).map_err(|error| failed(file, &error))
}

/// Without the error's own text, which may name the temporary file.
fn failed(file: &Path, error: &io::Error) -> String {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "there is no such folder".to_owned(),
        kind => kind.to_string(),
    };
    format!("cannot write {}: {reason}", file.display())
}

/// What is in a file that may be a report.
fn read(file: &Path) -> Option<String> {
    /// A report on as many files as one call lists is smaller.
    const MOST: u64 = 16 << 20;
    // A pipe would be waited for.
    fs::symlink_metadata(file).ok().filter(|found| found.is_file() && found.len() <= MOST)?;
    fs::read_to_string(file).ok()
}

/// By which a report says of which call it is.
struct Stamp(String);

impl Stamp {
    const SIGN: &str = "outlast make_report ";

    fn new(file: &Path, title: &str, format: Format, folder: &Folder) -> Self {
        let call = json!([file, folder.folder, title, format]).to_string();
        Self(format!("{}{}", Self::SIGN, hex_digest(call.as_bytes())))
    }

    fn text(&self, files: usize) -> String {
        format!("{}, {files} files", self.0)
    }

    /// How many files `report` lists, if it has this stamp.
    fn files_in(&self, report: &str) -> Option<usize> {
        let (_, after) = report.split_once(&format!("{}, ", self.0))?;
        after.split_once(" files")?.0.parse().ok()
    }
}

impl Format {
    /// Nothing in it depends on when it is written.
    fn contents(self, title: &str, stamp: &Stamp, folder: &Folder) -> String {
        let made_by = stamp.text(folder.files.len());
        match self {
            Self::Json => format!("{:#}\n", json!({"title": title, "folder": folder, "made_by": made_by})),
            Self::Markdown => {
                let rows: String = folder
                    .files
                    .iter()
                    .map(|file| format!("| {} | {} | `{}` |\n", file.name, file.bytes, file.sha256))
                    .collect();
                format!(
                    "# {title}\n\n{} files in {}, {} bytes.\n\n\
                    | file | bytes | SHA-256 |\n|---|---|---|\n{rows}\n<!-- {made_by} -->\n",
                    folder.files.len(),
                    folder.folder.display(),
                    folder.total_bytes,
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::files::Hashed;

    fn folder(names: &[&str]) -> Folder {
        let hashed = |name: &&str| Hashed { name: (*name).into(), bytes: 3, sha256: "5a".into() };
        Folder {
            folder: "files".into(),
            files: names.iter().map(hashed).collect(),
            skipped: Vec::new(),
            total_bytes: 3 * names.len() as u64,
            sha256: "a5".into(),
        }
    }

    #[test]
    fn a_report_is_known_again_whatever_changed_in_the_folder() {
        for format in [Format::Markdown, Format::Json] {
            let place = tempfile::tempdir().unwrap();
            let file = place.path().join("report");
            let first = write(&file, "A title", format, &folder(&["a", "b"])).unwrap();
            let written = fs::read(&file).unwrap();
            assert_eq!((first.files, first.bytes), (2, written.len()));

            assert_eq!(check(&file), Ok(()));
            assert_eq!(write(&file, "A title", format, &folder(&["a", "b", "c"])).unwrap(), first);
            assert_eq!(fs::read(&file).unwrap(), written);
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing else is left behind");
        }
    }

    #[test]
    fn a_file_of_another_call_or_of_no_call_is_never_written_over() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| place.path().join(name);
        fs::write(file("mine.md"), "mine").unwrap();
        assert!(check(&file("mine.md")).unwrap_err().contains("exists already"));
        assert!(
            write(&file("mine.md"), "T", Format::Json, &folder(&[])).unwrap_err().contains("exists already")
        );
        assert_eq!(fs::read_to_string(file("mine.md")).unwrap(), "mine");

        write(&file("new.md"), "T", Format::Markdown, &folder(&[])).unwrap();
        let other_title = write(&file("new.md"), "Another", Format::Markdown, &folder(&[]));
        let other_format = write(&file("new.md"), "T", Format::Json, &folder(&[]));
        fs::copy(file("new.md"), file("copy.md")).unwrap();
        let copy = write(&file("copy.md"), "T", Format::Markdown, &folder(&[]));
        for refused in [other_title, other_format, copy] {
            assert!(refused.unwrap_err().contains("exists already"));
        }
    }

    #[test]
    fn where_nothing_can_be_written_is_said_with_the_callers_own_words() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), "").unwrap();
        for (file, reason) in
            [("nowhere/report.md", "there is no such folder"), ("file/report.md", "not a directory")]
        {
            let file = place.path().join(file);
            let expected = format!("cannot write {}: {reason}", file.display());
            assert_eq!(check(&file), Err(expected.clone()));
            assert_eq!(write(&file, "T", Format::Json, &folder(&[])), Err(expected));
        }
        for unnamed in ["", "..", "/", "new/"] {
            assert_eq!(check(Path::new(unnamed)), Err(format!("{unnamed} is not the name of a file")));
        }
        assert!(check(place.path()).unwrap_err().contains("exists already"));
        assert_eq!(check(&place.path().join("report.md")), Ok(()));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "a check leaves nothing behind");
    }
}
