//! Profiles and settings from any text.

use super::place::Place;
use super::profile::Profiles;
use super::settings::Settings;
use super::variables::Variables;

/// The host and the path of a bucket by a config file with this text, where it is a valid one.
pub fn place(text: &str, bucket: &str) -> Option<(String, String)> {
    let profiles = Profiles::of_text(text)?;
    let settings = Settings::read(&Variables::default(), &profiles).ok()?;
    let place = Place::of(&settings, bucket, &settings.region).ok()?;
    Some((place.site.host, place.path))
}
