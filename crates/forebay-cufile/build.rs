//! Names the shared object as the library that it stands in for, and keeps it loaded: it has threads.

fn main() {
    for flag in ["-Wl,-soname,libcufile.so.0", "-Wl,-z,nodelete"] {
        println!("cargo::rustc-cdylib-link-arg={flag}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
