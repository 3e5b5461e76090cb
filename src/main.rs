//! The `freshet` binary: one program, several roles.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
