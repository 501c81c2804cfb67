//! A site's own severities: findings that it leaves out, and findings that are better or worse there.

use std::collections::BTreeMap;

use crate::exercise::Hinted;
use crate::finding::{Finding, Severity};
use crate::rules::{IDS, similar};

/// Severities of findings at a site, by id. `None` leaves a finding out.
#[derive(Clone, Debug, Default)]
pub struct SiteRules(BTreeMap<String, Option<Severity>>);

impl SiteRules {
    /// Leaves a finding out.
    pub fn ignore(&mut self, id: &str) -> Result<(), Hinted> {
        self.0.insert(known(id)?, None);
        Ok(())
    }

    /// Reads a file of lines `ID SEVERITY`; `#` begins a comment. Earlier rules stay; two lines of one id are an error.
    pub fn read(&mut self, place: &str, text: &str) -> Result<(), Hinted> {
        let mut seen: Vec<&str> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = |why: Hinted| Hinted { text: format!("{place}:{}: {}", index + 1, why.text), ..why };
            match words.as_slice() {
                [] => {}
                [id, _] if seen.contains(id) => {
                    return Err(at(Hinted::new(format!("a second line of {id}")).fix("leave one of them")));
                }
                [id, word] => {
                    seen.push(id);
                    let severity = severity(word).map_err(at)?;
                    self.0.entry(known(id).map_err(at)?).or_insert(severity);
                }
                _ => {
                    return Err(at(Hinted::new("no line of severities")
                        .fix("write: ID SEVERITY, as: nfs-version ignore")));
                }
            }
        }
        Ok(())
    }

    /// Changes what is not as it should be, worst first again; has the ids that were left out.
    pub(crate) fn apply(&self, findings: &mut Vec<Finding>) -> Vec<&'static str> {
        let mut ignored = Vec::new();
        findings.retain_mut(|finding| {
            let rule = self.0.get(finding.id).filter(|_| finding.severity > Severity::Ok);
            match rule {
                None => true,
                Some(Some(severity)) => {
                    finding.severity = *severity;
                    true
                }
                Some(None) => {
                    ignored.push(finding.id);
                    false
                }
            }
        });
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        ignored
    }
}

fn known(id: &str) -> Result<String, Hinted> {
    if IDS.contains(&id) {
        return Ok(id.to_owned());
    }
    Err(Hinted::new(format!("no finding has the id {id}"))
        .fix(format!("is it {}? docs/reference/doctor.md lists all", similar(id))))
}

fn severity(word: &str) -> Result<Option<Severity>, Hinted> {
    match word {
        "ignore" => Ok(None),
        "note" => Ok(Some(Severity::Note)),
        "slower" => Ok(Some(Severity::Slower)),
        "blocks" => Ok(Some(Severity::Blocks)),
        _ => Err(Hinted::new(format!("no severity: {word}")).fix("use one of: ignore, note, slower, blocks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Findings;

    #[test]
    fn findings_are_left_out_or_have_the_site_s_severity() {
        let mut rules = SiteRules::default();
        rules.ignore("numa").unwrap();
        rules
            .read("f", "# ours\n\nnfs-version  blocks # no 4.2 here\nnuma slower\nmemlock ignore\n")
            .unwrap();
        let mut found = Findings::default();
        found.add("numa", Severity::Note, "", None);
        found.add("iommu", Severity::Slower, "", None);
        found.add("nfs-version", Severity::Note, "", None);
        found.add("memlock", Severity::Ok, "", None);
        let mut found = found.sorted();
        assert_eq!(rules.apply(&mut found), ["numa"], "a flag is stronger than the file");
        let left: Vec<_> = found.iter().map(|finding| (finding.id, finding.severity)).collect();
        assert_eq!(
            left,
            [("nfs-version", Severity::Blocks), ("iommu", Severity::Slower), ("memlock", Severity::Ok)]
        );
    }

    #[test]
    fn mistakes_have_their_line_and_a_hint() {
        let why = SiteRules::default().read("s", "numa note\nnfs-versions note\n").unwrap_err();
        assert_eq!(why.text, "s:2: no finding has the id nfs-versions");
        assert!(why.fix.unwrap().starts_with("is it nfs-version?"));
        let text = |line: &str| SiteRules::default().read("s", line).unwrap_err().text;
        assert_eq!(text("numa bad"), "s:1: no severity: bad");
        assert_eq!(text("numa"), "s:1: no line of severities");
        assert_eq!(text("numa note\n\nnuma slower"), "s:3: a second line of numa");
    }
}
