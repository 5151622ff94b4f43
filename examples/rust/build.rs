//! Asks `leeward config` where libleeward is.
use std::{path::Path, process::Command};

fn main() {
    let asked = Command::new("leeward")
        .args(["config", "--library"])
        .output();
    let output = asked.expect("no program `leeward` is on the PATH");
    let library = String::from_utf8(output.stdout).expect("a path that isn't UTF-8");
    let folder = Path::new(library.trim())
        .parent()
        .expect("`leeward config --library` gave no path");
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=dylib=leeward");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
    println!("cargo:rerun-if-env-changed=PATH");
}
