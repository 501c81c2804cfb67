//! Names of what does not lie on this machine, and that no client is registered for (`forebay_source::check_read` asks that first):
//! objects of stores, the web, repositories of Hugging Face. The recognised forms and their messages are in this file
//! only.

use std::path::Path;

use forebay_error::{Error, ErrorKind, Result, quoted};

/// Schemes that have a name, and that one slash is enough for: a URL that went through a path type has lost the other.
const NAMED: [(&str, &str); 17] = [
    ("s3", "S3"),
    ("s3a", "S3"),
    ("s3n", "S3"),
    ("gs", "Google Cloud Storage"),
    ("gcs", "Google Cloud Storage"),
    ("az", "Azure storage"),
    ("abfs", "Azure storage"),
    ("abfss", "Azure storage"),
    ("wasb", "Azure storage"),
    ("wasbs", "Azure storage"),
    ("adl", "Azure storage"),
    ("hf", HUGGING_FACE),
    ("http", "HTTP"),
    ("https", "HTTP"),
    ("ftp", "FTP"),
    ("hdfs", "HDFS"),
    ("file", "file: URLs"),
];

/// Clients for `nfs://` and `s3://` are there, but a program says itself that it has them.
const REGISTER_NFS: &str = "call forebay::nfs::register() before the file is opened";
const REGISTER_S3: &str = "call forebay::objects::register() before the file is opened";

const HUGGING_FACE: &str = "Hugging Face";

/// Fails if `path` names something that is not read by a path: `s3://BUCKET/KEY`, `hf://ORG/MODEL`, `https://…`, any
/// `SCHEME://`. A folder of such a name is named with `./` in front.
pub fn check_read(path: &Path) -> Result<()> {
    refuse(path, "cannot open file", fetch_first)
}

fn fetch_first(name: &Name<'_>) -> String {
    match name.fetch() {
        Some(command) => format!("copy it to this machine first, and name the copy: {command}"),
        None => "copy it to this machine first, and name the copy".to_owned(),
    }
}

/// As [`check_read`], for files that are read by a path alone, whatever clients there are. `doing`: "cannot open trace".
pub fn check_here(path: &Path, doing: &str) -> Result<()> {
    let text = path.to_string_lossy();
    match Name::of(&text) {
        Some(name) if name.known().is_none() || name.is_s3() => {
            let what = format!("{doing}: it is named by a path of this machine, not by a URL");
            let error = Error::new(ErrorKind::Unsupported, what).with("url", &text);
            Err(error.hint(fetch_first(&name)))
        }
        _ => check_read(path),
    }
}

/// Fails if `path` names a place where no file can be made, as [`check_read`].
pub fn check_write(path: &Path) -> Result<()> {
    refuse(path, "cannot create file", |name| match name.send() {
        Some(command) => format!("write a file of this machine, then copy it: {command}"),
        None => "write a file of this machine, then copy it".to_owned(),
    })
}

/// What to say of a path that is not there, but may be meant for a repository of Hugging Face: `ORG/MODEL`.
pub fn repository_hint(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let (owner, name) = text.split_once('/')?;
    let is_word = |word: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        word.len() <= 96 && word.starts_with(|c: char| c.is_ascii_alphanumeric()) && word.bytes().all(fits)
    };
    // Files have endings of letters, versions of models have digits.
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let is_file = !ending.is_empty() && ending.bytes().all(|byte| byte.is_ascii_alphabetic());
    (is_word(owner) && is_word(name) && !is_file && !Path::new(owner).exists()).then(|| {
        format!("check the path; a repository of {HUGGING_FACE} is fetched first: hf download {text} --local-dir DIRECTORY")
    })
}

fn refuse(path: &Path, what: &str, hint: impl Fn(&Name<'_>) -> String) -> Result<()> {
    let text = path.to_string_lossy();
    let Some(name) = Name::of(&text) else { return Ok(()) };
    let error = if name.scheme == "file" {
        let local = name.rest.strip_prefix("localhost").unwrap_or(name.rest);
        Error::new(ErrorKind::InvalidInput, format!("{what}: it is named by a path, not by a file: URL"))
            .hint(format!("name the path: /{}", local.trim_start_matches('/')))
    } else if text.get(..5).is_some_and(|begin| begin.eq_ignore_ascii_case("s3://")) {
        Error::new(ErrorKind::Unsupported, format!("{what}: no client for S3 is registered"))
            .hint(REGISTER_S3)
    } else if name.is_s3() {
        Error::new(ErrorKind::InvalidInput, format!("{what}: objects are named s3://BUCKET/KEY"))
            .hint(format!("name it {}", quoted(&format!("s3://{}", name.rest))))
    } else {
        Error::new(ErrorKind::Unsupported, format!("{what}: forebay has no client for {}", name.client()))
            .hint(if name.scheme == "nfs" { REGISTER_NFS.to_owned() } else { hint(&name) })
    };
    Err(error.with("url", &text))
}

/// `SCHEME://REST`.
struct Name<'a> {
    /// In lower case.
    scheme: String,
    rest: &'a str,
}

impl<'a> Name<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once(":/")?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(fits);
        let name = Self { scheme: scheme.to_ascii_lowercase(), rest: rest.trim_start_matches('/') };
        let is_url = rest.starts_with('/') || name.known().is_some();
        (is_scheme && is_url).then_some(name)
    }

    fn known(&self) -> Option<&'static str> {
        NAMED.iter().find(|(scheme, _)| *scheme == self.scheme).map(|(_, client)| *client)
    }

    fn is_s3(&self) -> bool {
        matches!(self.scheme.as_str(), "s3" | "s3a" | "s3n")
    }

    fn client(&self) -> String {
        self.known().map_or_else(|| format!("{}://", self.scheme), str::to_owned)
    }

    /// The command that makes a file of it here.
    fn fetch(&self) -> Option<String> {
        let url = |scheme: &str| quoted(&format!("{scheme}://{}", self.rest));
        // A bucket or a folder of one, not an object.
        let all = if self.rest.ends_with('/') || !self.rest.contains('/') { "--recursive " } else { "" };
        match self.scheme.as_str() {
            _ if self.is_s3() && all.is_empty() => Some(format!("forebay cp {} .", url("s3"))),
            _ if self.is_s3() => Some(format!("forebay s3 cp {all}{} DIRECTORY", url("s3"))),
            "gs" | "gcs" => Some(format!("gcloud storage cp {all}{} .", url("gs"))),
            "hf" => Some(Repository::of(self.rest)?.download()),
            "http" | "https" => match self.page() {
                Some(repository) => Some(repository.download()),
                None => Some(format!("curl -fLO {}", url(&self.scheme))),
            },
            _ => None,
        }
    }

    /// The command that brings a file of this machine there.
    fn send(&self) -> Option<String> {
        let url = |scheme: &str| quoted(&format!("{scheme}://{}", self.rest));
        match self.scheme.as_str() {
            "gs" | "gcs" => Some(format!("gcloud storage cp FILE {}", url("gs"))),
            _ => None,
        }
    }

    /// The repository whose page or file an address of its site is.
    fn page(&self) -> Option<Repository<'a>> {
        let path = self.rest.strip_prefix("huggingface.co/").or_else(|| self.rest.strip_prefix("hf.co/"))?;
        Repository::of(path.split(['?', '#']).next()?)
    }
}

/// A repository of Hugging Face, and a file in it.
struct Repository<'a> {
    kind: Option<&'static str>,
    id: String,
    revision: Option<&'a str>,
    file: Option<&'a str>,
}

impl<'a> Repository<'a> {
    /// Of `[datasets/]ORG/NAME[@REVISION][/FILE]`, and of the paths of pages: `ORG/NAME/resolve/REVISION/FILE`.
    fn of(path: &'a str) -> Option<Self> {
        let kinds = [("datasets/", "dataset"), ("spaces/", "space")];
        let kind = kinds.iter().find(|(begin, _)| path.starts_with(begin));
        let path = kind.map_or(path, |(begin, _)| &path[begin.len()..]).trim_end_matches('/');
        let mut parts = path.splitn(3, '/');
        let (owner, name) = (parts.next()?, parts.next()?);
        let (name, mut revision) = name.split_once('@').map_or((name, None), |(name, of)| (name, Some(of)));
        let mut file = parts.next();
        if let Some((_, rest)) = file.and_then(|file| file.split_once('/')).filter(|_| is_view(file)) {
            let (of, within) = rest.split_once('/').map_or((rest, None), |(of, within)| (of, Some(within)));
            (revision, file) = (Some(of), within);
        }
        let is_there = !owner.is_empty() && !name.is_empty();
        is_there.then(|| Self {
            kind: kind.map(|(_, kind)| *kind),
            id: format!("{owner}/{name}"),
            revision,
            file,
        })
    }

    fn download(&self) -> String {
        let flag = |flag: &str, value: Option<&str>| {
            value.map_or_else(String::new, |value| format!("{flag} {}", quoted(value)))
        };
        let file = flag("", self.file);
        let of = flag(" --repo-type", self.kind) + &flag(" --revision", self.revision);
        format!("hf download {}{file}{of} --local-dir DIRECTORY", quoted(&self.id))
    }
}

/// Whether a path within a repository's pages begins with a way to look at it, in place of a file.
fn is_view(path: Option<&str>) -> bool {
    path.is_some_and(|path| ["resolve/", "blob/", "tree/", "raw/"].iter().any(|view| path.starts_with(view)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(url: &str) -> String {
        let error = check_read(url.as_ref()).unwrap_err();
        assert_eq!((error.hints().len(), error.context()), (1, &[("url", url.to_owned())][..]));
        error.hints()[0].clone()
    }

    #[test]
    fn what_lies_elsewhere_is_refused_with_the_command_that_fetches_it() {
        for (url, command) in [
            ("gs://bucket", "gcloud storage cp --recursive gs://bucket ."),
            ("https://host/a?b=c&d=e", "curl -fLO 'https://host/a?b=c&d=e'"),
            ("https:/host/a", "curl -fLO https://host/a"),
            ("hf://org/model", "hf download org/model --local-dir DIRECTORY"),
            (
                "hf://datasets/org/set@v1/a/b.parquet",
                "hf download org/set a/b.parquet --repo-type dataset --revision v1 --local-dir DIRECTORY",
            ),
            (
                "https://huggingface.co/org/model/resolve/main/m.safetensors?download=true",
                "hf download org/model m.safetensors --revision main --local-dir DIRECTORY",
            ),
            (
                "https://huggingface.co/org/model/tree/main",
                "hf download org/model --revision main --local-dir DIRECTORY",
            ),
        ] {
            assert_eq!(hint(url), format!("copy it to this machine first, and name the copy: {command}"));
        }
        for url in
            ["hdfs://node/file", "abfs://container/file", "ftp:/host/file", "rdma://host/x", "hf://gpt2"]
        {
            assert_eq!(hint(url), "copy it to this machine first, and name the copy");
        }
        assert_eq!(hint("nfs://server/export/file"), REGISTER_NFS);
        let error = check_read("memory://x".as_ref()).unwrap_err();
        assert_eq!(error.message(), "cannot open file: forebay has no client for memory://");
    }

    #[test]
    fn objects_have_a_client_and_other_names_of_them_are_near_misses() {
        for check in [check_read, check_write] {
            let error = check("S3://bucket/key".as_ref()).unwrap_err();
            assert_eq!(
                (error.kind(), error.hints()),
                (ErrorKind::Unsupported, &[REGISTER_S3.to_owned()][..])
            );
            for url in ["s3:/bucket/a key", "s3a://bucket/a key", "S3N:///bucket/a key"] {
                let error = check(url.as_ref()).unwrap_err();
                assert_eq!(
                    (error.kind(), error.hints()),
                    (ErrorKind::InvalidInput, &["name it 's3://bucket/a key'".to_owned()][..]),
                    "{url}"
                );
            }
        }
        for (url, command) in [
            ("s3://bucket/a key", "forebay cp 's3://bucket/a key' ."),
            ("s3a://bucket/folder/", "forebay s3 cp --recursive s3://bucket/folder/ DIRECTORY"),
        ] {
            let error = check_here(url.as_ref(), "cannot open trace").unwrap_err();
            assert!(error.message().ends_with("not by a URL"), "{error}");
            assert_eq!(
                error.hints(),
                [format!("copy it to this machine first, and name the copy: {command}")]
            );
        }
    }

    #[test]
    fn no_file_is_made_elsewhere() {
        let error = check_write("gs://bucket/key".as_ref()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot create file: forebay has no client for Google Cloud Storage (url=gs://bucket/key)"
        );
        assert_eq!(
            error.hints(),
            ["write a file of this machine, then copy it: gcloud storage cp FILE gs://bucket/key"]
        );
        let error = check_write("https://host/a".as_ref()).unwrap_err();
        assert_eq!(error.hints(), ["write a file of this machine, then copy it"]);
    }

    #[test]
    fn a_file_url_is_answered_with_its_path() {
        for url in ["file:///data/m", "file://localhost/data/m", "file:/data/m", "FILE:///data/m"] {
            let error = check_read(url.as_ref()).unwrap_err();
            assert_eq!(
                (error.kind(), error.hints()),
                (ErrorKind::InvalidInput, &["name the path: /data/m".to_owned()][..])
            );
        }
    }

    #[test]
    fn paths_and_names_of_servers_are_left_alone() {
        for path in [
            "/data/m",
            "a:b",
            "server:/export/m",
            "NFS:/server/m",
            "./s3://bucket/key",
            "/mnt/s3:/x",
            "a b://c",
            "://x",
            "s3:key",
            "",
            "1a://x",
        ] {
            assert!(check_read(path.as_ref()).is_ok() && check_write(path.as_ref()).is_ok(), "{path}");
        }
    }

    #[test]
    fn what_may_be_a_repository_gets_a_hint() {
        for id in ["org/model", "meta-llama/Llama-3.1-8B", "a/b.1"] {
            assert!(repository_hint(id.as_ref()).unwrap().contains(&format!("hf download {id} ")), "{id}");
        }
        for path in ["model", "a/b/c", "/a/b", "a/b.npy", "a/.b", "a/", "src/lib", "a b/c", "../b"] {
            assert_eq!(repository_hint(path.as_ref()), None, "{path}");
        }
    }
}
