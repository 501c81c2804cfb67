//! What a file system can do for a gateway, and which way each operation takes there: for people, before they serve it.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::inner::Abilities;
use super::probe::{self, Replaced, Trial};
use crate::store::StoreResult;

/// Something that a gateway has need of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountFact {
    /// A name that stays.
    pub id: &'static str,
    /// What it is.
    pub what: &'static str,
    /// The result: `yes`, `no`, a number.
    pub found: String,
    /// How bad that is.
    pub state: MountState,
    /// What it costs, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'static str>,
}

/// How well something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MountState {
    /// As it should.
    Ok,
    /// Slower, or something is refused.
    Degraded,
    /// A gateway is not right there.
    Broken,
}

/// Which way an operation takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationWay {
    /// `PUT`, `If-Match`, ….
    pub operation: &'static str,
    /// How it is done.
    pub way: String,
}

/// What a directory can do for a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountReport {
    /// The directory.
    pub directory: PathBuf,
    /// The same directory by another mount, where one was given.
    pub other_mount: Option<PathBuf>,
    /// Results of the trials.
    pub facts: Vec<MountFact>,
    /// What follows from it.
    pub operations: Vec<OperationWay>,
}

/// Tries out a directory, and the same one by another mount, with files in its `.forebay`, which are removed.
pub fn examine(directory: &Path, other_mount: Option<&Path>) -> StoreResult<MountReport> {
    let trial = probe::try_out(directory, other_mount)?;
    Ok(MountReport {
        directory: directory.to_owned(),
        other_mount: other_mount.map(Path::to_owned),
        facts: facts(&trial, other_mount.is_some()),
        operations: operations(&trial),
    })
}

impl MountReport {
    /// The worst of all facts.
    pub fn state(&self) -> MountState {
        self.facts.iter().map(|fact| fact.state).max().unwrap_or(MountState::Ok)
    }
}

impl fmt::Display for MountReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gateway over {}", self.directory.display())?;
        match &self.other_mount {
            Some(other) => writeln!(f, ", also by {}", other.display())?,
            None => writeln!(f, " (one mount: what another one sees was not tried)")?,
        }
        for MountFact { what, found, state, hint, .. } in &self.facts {
            let mark = match state {
                MountState::Ok => "ok",
                MountState::Degraded => "--",
                MountState::Broken => "!!",
            };
            writeln!(f, "  {mark}  {what}: {found}")?;
            if let Some(hint) = hint {
                writeln!(f, "      hint: {hint}")?;
            }
        }
        writeln!(f, "operations")?;
        for OperationWay { operation, way } in &self.operations {
            writeln!(f, "  {operation:<15} {way}")?;
        }
        Ok(())
    }
}

/// A fact that is so or not; `else_hint` stands where it is not.
fn whether(
    id: &'static str,
    what: &'static str,
    is: bool,
    bad: MountState,
    else_hint: &'static str,
) -> MountFact {
    let (found, state) = if is { ("yes", MountState::Ok) } else { ("no", bad) };
    MountFact { id, what, found: found.to_owned(), state, hint: (!is).then_some(else_hint) }
}

fn facts(trial: &Trial, is_in_two: bool) -> Vec<MountFact> {
    use MountState::{Broken, Degraded};
    let Trial { abilities, direct, syncs_directories, replaced, .. } = trial;
    let (link, lock) = if is_in_two {
        ("link() refuses a name that the other mount made", "locks of open files hold between the mounts")
    } else {
        ("link() refuses a name that is there", "locks of open files")
    };
    let mut all = vec![
        whether("openat2", "paths that stay below a directory (openat2)", true, Broken, ""),
        whether(
            "unnamed-files",
            "files without a name (O_TMPFILE)",
            abilities.unnamed_files,
            Degraded,
            "new objects are made in .forebay/tmp of the bucket: a gateway that is killed leaves some, which the sweep removes",
        ),
        whether(
            "link-refuses",
            link,
            abilities.link_refuses,
            Broken,
            "If-None-Match cannot be kept: two writers may both succeed; use another file system",
        ),
        whether(
            "rename-refuses",
            "renameat2(RENAME_NOREPLACE); not needed",
            abilities.rename_refuses,
            MountState::Ok,
            "nothing to do: link() takes its place",
        ),
        whether(
            "locks",
            lock,
            abilities.locks,
            if is_in_two { Broken } else { Degraded },
            "If-Match is refused, and writers of a key are not ordered: mount it with locks (NFS: without nolock)",
        ),
        room(abilities),
        whether(
            "copies",
            "copies inside the file system (copy_file_range)",
            abilities.copies,
            Degraded,
            "copies, and uploads whose parts differ in length, move their bytes through the gateway",
        ),
        whether(
            "fine-times",
            "times to the nanosecond",
            abilities.fine_times,
            Degraded,
            "two objects of one size that are written within a second may share an ETag",
        ),
        whether(
            "direct-io",
            "reads past the page cache (O_DIRECT)",
            *direct,
            Degraded,
            "large objects go through the page cache",
        ),
        whether(
            "directory-sync",
            "fsync of directories",
            *syncs_directories,
            Degraded,
            "after a power cut an object whose PUT was answered may be missing",
        ),
    ];
    all.push(replaced_fact(*replaced));
    all
}

fn room(abilities: &Abilities) -> MountFact {
    let room = abilities.attribute_room;
    let (found, state, hint) = match room {
        0 => (
            "none".to_owned(),
            MountState::Degraded,
            Some(
                "each object with metadata has a second file in .forebay/meta; mount with user_xattr where there is such an option",
            ),
        ),
        _ => (format!("{room} B"), MountState::Ok, None),
    };
    MountFact { id: "attributes", what: "room of a user. attribute", found, state, hint }
}

fn replaced_fact(replaced: Replaced) -> MountFact {
    let mut found = replaced.bytes.words().to_owned();
    if let Some(seconds) = replaced.seconds {
        let _ = write!(found, "; the new one is opened after {seconds:.1} s");
    }
    let is_late = replaced.seconds.is_none_or(|seconds| seconds > 1.0);
    let is_bad = replaced.bytes == probe::OldBytes::Mixed;
    let (state, hint) = if is_bad {
        (
            MountState::Broken,
            Some("a reader may get bytes of two objects: do not replace objects that are read"),
        )
    } else if is_late {
        (
            MountState::Degraded,
            Some(
                "another gateway gives the old object for a while: shorten the mount's attribute cache (NFS: actimeo=1)",
            ),
        )
    } else {
        (MountState::Ok, None)
    };
    MountFact { id: "replaced", what: "a reader of an object that is replaced", found, state, hint }
}

fn operations(trial: &Trial) -> Vec<OperationWay> {
    let Abilities { unnamed_files, link_refuses, locks, attribute_room, copies, .. } = trial.abilities;
    let draft = if unnamed_files { "a file without a name" } else { "a file in .forebay/tmp" };
    let copying = if copies { "copy_file_range" } else { "reading and writing" };
    let ways = [
        (
            "GET",
            if trial.replaced.bytes == probe::OldBytes::Stale {
                "open and read; ESTALE is opened again, three times, then 503".to_owned()
            } else {
                "open and read".to_owned()
            },
        ),
        ("PUT", format!("{draft}, then link(), or rename() over the object that is there")),
        (
            "If-None-Match",
            if link_refuses {
                "link(), which refuses a name that is there"
            } else {
                "not kept: link() takes names that are there"
            }
            .to_owned(),
        ),
        (
            "If-Match",
            if locks { "compared under a lock of the key in .forebay/lock" } else { "refused: no locks" }
                .to_owned(),
        ),
        ("DELETE", if locks { "unlink() under a lock of the key" } else { "unlink()" }.to_owned()),
        (
            "metadata",
            match attribute_room {
                0 => "a file in .forebay/meta".to_owned(),
                room => format!("an attribute up to {room} B, above that a file in .forebay/meta"),
            },
        ),
        (
            "Complete",
            if locks {
                format!("equal parts lie at their place: rename(); others by {copying}")
            } else {
                format!("all parts by {copying}")
            },
        ),
        ("Copy", copying.to_owned()),
    ];
    ways.into_iter().map(|(operation, way)| OperationWay { operation, way }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial() -> Trial {
        Trial {
            abilities: Abilities {
                unnamed_files: true,
                link_refuses: true,
                rename_refuses: true,
                locks: true,
                attribute_room: 4000,
                copies: true,
                fine_times: true,
            },
            direct: true,
            syncs_directories: true,
            replaced: Replaced { bytes: probe::OldBytes::Old, seconds: Some(0.0) },
        }
    }

    fn report(trial: &Trial) -> MountReport {
        MountReport {
            directory: "/srv".into(),
            other_mount: Some("/mnt".into()),
            facts: facts(trial, true),
            operations: operations(trial),
        }
    }

    type Take = fn(&mut Trial);

    /// Each ability that is missing is said with its hint, and changes the way of an operation or the state.
    #[test]
    fn what_is_missing_has_a_hint_and_another_way() {
        let whole = report(&trial());
        assert_eq!(whole.state(), MountState::Ok);
        assert!(whole.facts.iter().all(|fact| fact.hint.is_none()), "{whole}");
        let without: [(&str, MountState, Take, &str); 10] = [
            (
                "unnamed-files",
                MountState::Degraded,
                |trial| trial.abilities.unnamed_files = false,
                "a file in .forebay/tmp",
            ),
            ("link-refuses", MountState::Broken, |trial| trial.abilities.link_refuses = false, "not kept"),
            ("rename-refuses", MountState::Ok, |trial| trial.abilities.rename_refuses = false, ""),
            ("locks", MountState::Broken, |trial| trial.abilities.locks = false, "refused: no locks"),
            (
                "attributes",
                MountState::Degraded,
                |trial| trial.abilities.attribute_room = 0,
                " a file in .forebay/meta",
            ),
            ("copies", MountState::Degraded, |trial| trial.abilities.copies = false, "reading and writing"),
            ("fine-times", MountState::Degraded, |trial| trial.abilities.fine_times = false, ""),
            ("direct-io", MountState::Degraded, |trial| trial.direct = false, ""),
            ("directory-sync", MountState::Degraded, |trial| trial.syncs_directories = false, ""),
            ("replaced", MountState::Degraded, |trial| trial.replaced.seconds = Some(5.0), ""),
        ];
        for (id, state, take, way) in without {
            let mut trial = trial();
            take(&mut trial);
            let report = report(&trial);
            let changed: Vec<_> =
                report.facts.iter().filter(|fact| fact.hint.is_some()).map(|fact| fact.id).collect();
            assert_eq!((changed, report.state()), (vec![id], state), "{report}");
            assert!(report.to_string().contains(way), "{id}: {report}");
        }
    }

    #[test]
    fn a_reader_that_gets_estale_is_served_again_and_mixed_bytes_are_a_fault() {
        let with = |bytes| {
            let replaced = Replaced { bytes, seconds: Some(0.0) };
            report(&Trial { replaced, ..trial() })
        };
        let stale = with(probe::OldBytes::Stale);
        assert!(
            stale.state() == MountState::Ok && stale.to_string().contains("three times, then 503"),
            "{stale}"
        );
        assert_eq!(with(probe::OldBytes::Mixed).state(), MountState::Broken);
    }
}
