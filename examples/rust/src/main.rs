//! A job from Rust: its output and its exit code become ours.
//!
//!     cargo run -q -- 'print(6 * 7)' [SECONDS]
mod leeward;

use std::io::Write;

fn run(code: &str, seconds: f64) -> Result<i32, Box<dyn std::error::Error>> {
    let mut handle = leeward::Handle::connect()?;
    let result = handle.execute(code, seconds)?;
    std::io::stdout().write_all(result.stdout())?;
    std::io::stderr().write_all(result.stderr())?;
    if result.timed_out() {
        eprintln!("the job ran into its time limit");
    }
    Ok(result.exit_code())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let code = arguments
        .first()
        .map_or("print('hello from a sandbox')", String::as_str);
    let seconds = arguments
        .get(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.0);
    let status = run(code, seconds).unwrap_or_else(|error| {
        eprintln!("{error}");
        1
    });
    std::process::exit(status)
}
