//! `evenkeel chat`: a conversation in the terminal, or from a pipe.
//!
//! What is typed while a reply is still coming is sent at once; the busy policy says what it does.
//! While a run asks whether a call may run, `y` and `n` are the answer. Replies go to stdout, everything else to stderr, so that a pipe gets the answers alone. From a
//! pipe each line is a message, sent when the one before it was answered.

mod screen;
mod session;
mod typed;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use evenkeel_core::Error;
use evenkeel_core::id::ThreadId;
use evenkeel_env::Env;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};

use crate::client::Connection;
use crate::cmd::Done;
use crate::cmd::ask::{self, Question, Said};
use crate::cmd::serve::Stop;
use screen::Screen;
use session::Session;
use typed::Typed;

/// Arguments of `chat`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel chat                                     a new conversation; /help says what can be typed
  evenkeel chat --thread THREAD                     go on with one; `evenkeel threads list` has them
  echo \"What is a lease?\" | evenkeel chat           one question, the answer on stdout

Ctrl-c cancels the reply that is coming, a second one leaves. Exit code 0, or 1 if a message that was
piped in got no answer.")]
pub(crate) struct Args {
    /// Go on with this thread
    #[arg(long, value_name = "ID")]
    thread: Option<ThreadId>,
    /// Who answers
    #[arg(long, default_value = "chat")]
    assistant: String,
    /// What a message does while a reply is coming: enqueue, reject, interrupt, rollback, steer,
    /// merge or latest; the thread's or the assistant's own without it
    #[arg(long, value_parser = typed::POLICIES)]
    policy: Option<String>,
    /// Print every event of the stream as a line of JSON instead of the replies
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Talks until the input ends.
pub(crate) async fn run(env: Env, args: Args) -> Done {
    let mut stop = Stop::listen()?;
    let server = args.connection.open(&env);
    let mut session = Session::open(&env, server, args.thread, args.assistant).await?;
    let mut screen = Screen::new(args.json);
    let lines = BufReader::new(tokio::io::stdin()).lines();
    let piped = !std::io::stdin().is_terminal();
    let may_ask = !piped && !args.json;
    let mut talk = Talk { policy: args.policy, lines, is_open: true, piped, may_ask, asked: Vec::new() };
    if !talk.piped {
        screen.note(&format!("thread {}; /help says what can be typed", session.thread));
    }
    let all_well = talk.go(&mut session, &mut screen, &mut stop).await?;
    Ok(if all_well || !talk.piped { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The input and how it is sent.
struct Talk {
    policy: Option<String>,
    lines: Lines<BufReader<Stdin>>,
    is_open: bool,
    piped: bool,
    /// Whether there is a person who can be asked.
    may_ask: bool,
    /// What a run asks and has no answer to, the one that was shown first.
    asked: Vec<Question>,
}

impl Talk {
    /// Until the input has ended and everything is answered; says whether all of it was.
    async fn go(
        &mut self,
        session: &mut Session,
        screen: &mut Screen,
        stop: &mut Stop,
    ) -> Result<bool, Error> {
        let mut all_well = true;
        loop {
            if !self.is_open && session.is_idle() {
                return Ok(all_well);
            }
            let may_read = self.is_open && (!self.piped || session.is_idle());
            tokio::select! {
                biased;
                () = stop.wait() => {
                    if session.is_idle() || !session.cancel().await? {
                        return Ok(all_well);
                    }
                    screen.note("cancelling (ctrl-c again to leave)");
                }
                event = session.next() => {
                    let event = event?;
                    all_well &= screen.show(&event)?;
                    session.seen(&event);
                    if event.name == "metadata" {
                        // The run goes on, or is over.
                        self.asked.clear();
                    } else if self.may_ask && event.asks() {
                        self.asked = session.questions().await?;
                        self.show_question(screen);
                    }
                }
                line = self.lines.next_line(), if may_read => match line {
                    Ok(Some(line)) => all_well &= self.line(&line, session, screen).await?,
                    Ok(None) | Err(_) => self.is_open = false,
                },
            }
        }
    }

    fn show_question(&self, screen: &mut Screen) {
        for line in self.asked.first().into_iter().flat_map(Question::lines) {
            screen.note(&line);
        }
    }

    /// Takes a line as the answer to what is asked; `false` if it is none.
    async fn answered(&mut self, line: &str, session: &Session, screen: &mut Screen) -> Result<bool, Error> {
        let said = Said::parse(line);
        let Some(question) = self.asked.first().filter(|_| said != Said::Unclear) else {
            return Ok(false);
        };
        if !session.answer(question, &said).await? {
            screen.note(ask::CLOSED);
        }
        self.asked.remove(0);
        self.show_question(screen);
        Ok(true)
    }

    /// Carries out a line; says whether it was taken.
    async fn line(&mut self, line: &str, session: &mut Session, screen: &mut Screen) -> Result<bool, Error> {
        if self.answered(line, session, screen).await? {
            return Ok(true);
        }
        match Typed::parse(line) {
            Typed::Nothing => {}
            Typed::Help => screen.note(typed::HELP),
            Typed::Unknown(word) => {
                screen.note(&format!("/{word} is not known; /help says what can be typed"));
            }
            Typed::Quit => self.is_open = false,
            Typed::Cancel => {
                if !session.cancel().await? {
                    screen.note("nothing is running");
                }
            }
            Typed::Message { text, policy } => {
                let policy = policy.or(self.policy.as_deref());
                match session.say(&text, policy).await {
                    Ok(sent) => screen.sent(&sent),
                    Err(error) if error.origin == evenkeel_core::Origin::Client => {
                        screen.refused(&error);
                        return Ok(false);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
