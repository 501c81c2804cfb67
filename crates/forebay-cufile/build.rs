//! Names the shared object as the library that it stands in for, and keeps it loaded: it has threads.

fn main() {
    // C functions of libraries inside, which another crate may have asked for, stay inside.
    for flag in ["-Wl,-soname,libcufile.so.0", "-Wl,-z,nodelete", "-Wl,--exclude-libs,ALL"] {
        println!("cargo::rustc-cdylib-link-arg={flag}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
