//! Commands that give keys.

use std::process::{Command, Stdio};

use ::reqsign_core::{CommandExecute, CommandOutput, Error, Result};

/// Runs one command, whatever words it is asked to run: its words are those of quotes, and reqsign's of blanks.
#[derive(Clone)]
pub(super) struct OneCommand(pub(super) String);

impl std::fmt::Debug for OneCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OneCommand")
    }
}

impl CommandExecute for OneCommand {
    async fn command_execute(&self, _: &str, _: &[&str]) -> Result<CommandOutput> {
        let words = words(&self.0).filter(|words| !words.is_empty());
        let words =
            words.ok_or_else(|| Error::config_invalid("credential_process has a quote without its end"))?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        let output =
            command.output().map_err(|error| Error::config_invalid(format!("{}: {error}", words[0])))?;
        let status = output.status.code().unwrap_or(-1);
        Ok(CommandOutput { status, stdout: output.stdout, stderr: output.stderr })
    }
}

/// The words of a command, by the quotes of a shell. `None`: a quote has no end.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        '\'' => break,
                        letter => word.push(letter),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        '"' => break,
                        '\\' => match letters.next()? {
                            letter @ ('"' | '\\') => word.push(letter),
                            letter => word.extend(['\\', letter]),
                        },
                        letter => word.push(letter),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(letters.next()?),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_quotes() {
        for (text, expected) in [
            ("a  b\tc", vec!["a", "b", "c"]),
            (r#"a "b  c" 'd " e' f\ g"#, vec!["a", "b  c", "d \" e", "f g"]),
            (r#"'' "a\"b\c" x'y'z"#, vec!["", "a\"b\\c", "xyz"]),
            ("", vec![]),
        ] {
            assert_eq!(words(text).unwrap(), expected, "{text}");
        }
        for text in ["'a", "\"a", "a\\", "\"\\"] {
            assert_eq!(words(text), None, "{text}");
        }
    }
}
