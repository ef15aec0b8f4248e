//! What the demo's tools do with files.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    fs, io,
    path::{Component, Path, PathBuf},
};

use rmcp::schemars::{self, JsonSchema};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

/// A file that was read to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Hashed {
    /// The file, relative to the folder.
    pub(super) name: String,
    /// Its size.
    pub(super) bytes: u64,
    /// The SHA-256 of its bytes, in hex.
    pub(super) sha256: String,
}

/// A file that nothing was done with.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Skipped {
    /// The file.
    pub(super) name: String,
    /// Why.
    pub(super) reason: String,
}

/// A folder whose files were hashed.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Folder {
    /// The folder.
    pub(super) folder: PathBuf,
    /// Its files, by name.
    pub(super) files: Vec<Hashed>,
    /// Files that were not read.
    pub(super) skipped: Vec<Skipped>,
    /// The size of all that were.
    pub(super) total_bytes: u64,
    /// The SHA-256 of the lines that `sha256sum` prints for these files.
    pub(super) sha256: String,
}

/// The most files and folders that one call lists, so that its result stays one that a caller can read.
pub(super) const MOST: usize = 10_000;

/// The regular files in `folder`, by name; with `deep` those of its folders too. A symbolic link is not followed.
///
/// # Errors
/// A sentence for the caller.
pub(super) fn list(folder: &Path, deep: bool) -> Result<Vec<PathBuf>, String> {
    let failed =
        |path: &Path, error: io::Error| format!("cannot read the folder {}: {error}", path.display());
    if !fs::metadata(folder).map_err(|error| failed(folder, error))?.is_dir() {
        return Err(format!("{} is not a folder", folder.display()));
    }
    let mut files = Vec::new();
    let mut folders = VecDeque::from([folder.to_owned()]);
    let mut seen = 0;
    while let Some(folder) = folders.pop_front() {
        for entry in fs::read_dir(&folder).map_err(|error| failed(&folder, error))? {
            let entry = entry.map_err(|error| failed(&folder, error))?;
            let kind = entry.file_type().map_err(|error| failed(&folder, error))?;
            if kind.is_file() {
                files.push(entry.path());
            } else if deep && kind.is_dir() {
                folders.push_back(entry.path());
            } else {
                continue;
            }
            seen += 1;
            if seen > MOST {
                return Err(format!("there are more than {MOST} files and folders; name a smaller folder"));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Hashes a file, listed as `name`, piece by piece, so that dropping this future stops it soon, however large the file is.
pub(super) async fn hash(name: &str, file: &Path) -> io::Result<Hashed> {
    // A piece is hashed on the runtime's own thread: shorter than it takes to hand it to another one and back.
    const PIECE: usize = 256 << 10;
    let mut reader = tokio::fs::File::open(file).await?;
    let mut piece = vec![0; PIECE];
    let (mut bytes, mut hasher) = (0, Sha256::new());
    loop {
        match reader.read(&mut piece).await? {
            0 => break,
            read => {
                hasher.update(&piece[..read]);
                bytes += read as u64;
            }
        }
    }
    Ok(Hashed { name: name.to_owned(), bytes, sha256: hex(&hasher.finalize()) })
}

/// One hash over a listing: that of the lines which `sha256sum` prints for these files.
pub(super) fn hash_listing(files: &[Hashed]) -> String {
    let mut hasher = Sha256::new();
    for Hashed { name, sha256, .. } in files {
        hasher.update(format!("{sha256}  {name}\n"));
    }
    hex(&hasher.finalize())
}

/// The SHA-256 of `bytes`, in hex.
pub(super) fn hex_digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Whether `name` names something directly in a folder, whatever the folder.
pub(super) fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    // A slash at the end, and a colon on Windows, vanish from the components or change what they mean.
    matches!(parts.next(), Some(Component::Normal(_)))
        && parts.next().is_none()
        && !name.contains(['/', '\\', ':'])
        // A person reads the name before they agree to anything.
        && !name.chars().any(char::is_control)
}

/// Checks that `folder` is named without detours, so that what a person agreed to is what is meant later too.
///
/// # Errors
/// A sentence for the caller.
pub(super) fn check_real_folder(folder: &Path) -> Result<(), String> {
    let real = folder
        .canonicalize()
        .map_err(|error| format!("cannot use the folder {}: {error}", folder.display()))?;
    if real != folder {
        // Which one that is might be more than the caller knows.
        return Err(format!(
            "{} is not the folder's whole real path, as hash_folder gives it; name the folder by that",
            folder.display()
        ));
    }
    if !real.is_dir() {
        return Err(format!("{} is not a folder", real.display()));
    }
    Ok(())
}

/// Deletes the regular file `name` in `folder`.
///
/// # Errors
/// Why it is kept, in a sentence for the caller.
pub(super) fn delete(folder: &Path, name: &str) -> Result<(), String> {
    check_real_folder(folder)?;
    let file = folder.join(name);
    let found = fs::symlink_metadata(&file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    })?;
    if !found.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    // Removes the name in this folder, and never what a link points to.
    fs::remove_file(&file).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, contents) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, contents).unwrap();
        }
        folder
    }

    /// The folder's path as a caller has to name it where it matters.
    fn real(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().canonicalize().unwrap()
    }

    #[tokio::test]
    async fn files_are_listed_by_name_and_hashed_as_sha256sum_does() {
        let folder = folder_with(&[("b.txt", "abc"), ("a.txt", ""), ("deep/c.txt", "abc")]);
        let files = list(folder.path(), false).unwrap();
        let mut hashed = Vec::new();
        for (name, file) in ["a.txt", "b.txt"].iter().zip(&files) {
            hashed.push(hash(name, file).await.unwrap());
        }

        const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        const OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hashed_as =
            |name: &str, bytes, sha256: &str| Hashed { name: name.into(), bytes, sha256: sha256.into() };
        assert_eq!(hashed, [hashed_as("a.txt", 0, OF_NOTHING), hashed_as("b.txt", 3, OF_ABC)]);
        let lines = format!("{OF_NOTHING}  a.txt\n{OF_ABC}  b.txt\n");
        assert_eq!(hash_listing(&hashed), hex(&Sha256::digest(lines)));
        assert_eq!(list(folder.path(), true).unwrap().len(), 3);
    }

    #[test]
    fn what_is_no_folder_is_said_to_be_none() {
        let folder = folder_with(&[("a.txt", "")]);
        assert!(
            list(&folder.path().join("missing"), false).unwrap_err().starts_with("cannot read the folder")
        );
        assert!(list(&folder.path().join("a.txt"), false).unwrap_err().ends_with("is not a folder"));
    }

    #[test]
    fn only_names_directly_in_the_folder_are_plain() {
        for plain in ["a.txt", ".hidden", "with space", "ünï"] {
            assert!(is_plain_name(plain), "{plain}");
        }
        for other in ["", ".", "..", "../a", "a/b", "a/", "/a", "a\\b", "c:a", "a\0", "a\nb"] {
            assert!(!is_plain_name(other), "{other:?}");
        }
    }

    #[test]
    fn only_regular_files_are_deleted() {
        let folder = folder_with(&[("a.txt", "a"), ("deep/b.txt", "b")]);
        let real = real(&folder);
        assert_eq!(delete(&real, "a.txt"), Ok(()));
        assert_eq!(delete(&real, "a.txt"), Err("there is no such file".to_owned()));
        assert_eq!(delete(&real, "deep"), Err("it is not a regular file".to_owned()));
        assert!(real.join("deep/b.txt").exists());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_neither_followed_nor_deleted_nor_taken_for_folders() {
        let folder = folder_with(&[("a.txt", "a"), ("deep/b.txt", "b")]);
        let real = real(&folder);
        std::os::unix::fs::symlink(real.join("a.txt"), real.join("link")).unwrap();
        std::os::unix::fs::symlink(real.join("deep"), real.join("other")).unwrap();
        assert_eq!(delete(&real, "link"), Err("it is not a regular file".to_owned()));
        assert!(
            delete(&real.join("other"), "b.txt").unwrap_err().contains("not the folder's whole real path")
        );
        assert!(real.join("a.txt").exists() && real.join("deep/b.txt").exists());
        assert_eq!(list(&real, true).unwrap(), [real.join("a.txt"), real.join("deep/b.txt")]);
    }
}
