//! Settings and the pages that name them: one program of tests, because each of them takes seconds to link.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod cufile_json_page;
mod cufile_settings;
mod environment_page;
