// The page of a node: asks for the node's status once a second and shows it, in the words of `starling top`. What it shows came
// from strangers in part, so every text goes into the page as text, never as HTML. Nothing is kept when the page closes.

const kLookEvery = 1000;         // ms, as all times here
const kPatience = 5000;          // for an answer
const kKept = 600_000;           // how much of the past the curves show
const kShortest = 10_000;        // what they show at least
const kRates = 10_000;           // rates are averages of so long
const kGap = 5000;               // without a look for so long a curve is interrupted
const kSayEvery = 60_000;        // a screen reader hears the figures this often, and whenever the phase changes
const kMostRows = 200;           // of a table; more than anybody reads

const by_id = (id) => document.getElementById(id);
let token = '';
let looks = [];                  // what the curves are made of, the oldest first
let status = null;               // the newest
let lost_at = '';                // when the node stopped answering
let said = {at: -Infinity, phase: ''};

// Replaces what could hide or turn a text by \xNN, byte by byte, as the program itself does (node/printable.h).
const kHidden = /[\0-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{10ffff}]/gu;
function printable(text) {
  const hex = (character) => [...new TextEncoder().encode(character)].map((byte) => '\\x' + byte.toString(16).padStart(2, '0')).join('');
  return text.replace(kHidden, hex);
}

const is_number = (value) => typeof value === 'number';
const number = (value) => is_number(value) ? value : 0;
const fixed = (value, places) => number(value).toFixed(places);
const digits = (value, count) => String(Number(value.toPrecision(count)));
function show(value) {
  if (typeof value === 'string' && value !== '') return printable(value);
  if (is_number(value)) return Number.isInteger(value) ? String(value) : digits(value, 4);
  return '-';
}
const percent = (share) => `${fixed(share * 100, 1)} %`;
const unit = (value, name) => is_number(value) ? `${digits(value, 3)} ${name}` : '-';
const short = (id) => show(id).slice(0, 8);
const two = (value) => String(value).padStart(2, '0');
const clock_text = (time) => [time.getHours(), time.getMinutes(), time.getSeconds()].map(two).join(':');

function show_bytes(count) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let bytes = number(count);
  let i = 0;
  for (; bytes >= 1000 && i + 1 < units.length; ++i) bytes /= 1000;
  return `${bytes.toFixed(i === 0 || bytes >= 100 ? 0 : 1)} ${units[i]}`;
}

function show_left(seconds) {
  const whole = Math.round(number(seconds));
  if (whole >= 3600) return `${Math.floor(whole / 3600)}h${two(Math.floor(whole / 60) % 60)}m`;
  return whole >= 60 ? `${Math.floor(whole / 60)}m${two(whole % 60)}s` : `${whole}s`;
}

// Touches the page only where something changed, so that a selection stays and nothing is read out twice.
function put(element, text) {
  const node = typeof element === 'string' ? by_id(element) : element;
  if (node.textContent !== text) node.textContent = text;
  return node;
}

// As many children as there are items, each made once and shown again.
function put_list(parent, items, tag, put_item) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, i) => put_item(parent.children[i] ?? parent.appendChild(document.createElement(tag)), item));
}

// Rows of texts; the second cell says a state.
function put_rows(id, rows, nobody) {
  const shown = rows.slice(0, kMostRows);
  if (rows.length === 0) shown.push([nobody]);
  if (rows.length > kMostRows) shown.push([`and ${rows.length - kMostRows} more: starling ${id} shows all`]);
  put_list(by_id(id), shown, 'tr', (row, cells) => put_list(row, cells, 'td', (cell, text) => {
    put(cell, text);
    if (cell === row.children[1]) cell.dataset.state = text;
  }));
}

// Bytes a second between two looks; nothing where another process counts anew.
function between(then, old, now, fresh) {
  const seconds = (now - then) / 1000;
  if (!old || seconds <= 0 || fresh.bytes_sent < old.bytes_sent || fresh.bytes_received < old.bytes_received) return null;
  return {up: (fresh.bytes_sent - old.bytes_sent) / seconds, down: (fresh.bytes_received - old.bytes_received) / seconds};
}

function remember(now) {
  const last = looks.at(-1);
  // Another node at this address, or another process of this one.
  if (last && (last.node !== status.node.id || status.node.uptime_s < last.uptime)) looks = [];
  while (looks.length > 0 && now - looks[0].at > kKept) looks.shift();
  const look = {
    at: now, node: status.node.id, uptime: status.node.uptime_s, traffic: status.traffic,
    edges: new Map(status.neighbours.map((edge) => [edge.id, edge])),
    loss: status.train.loss, speed: status.train.images_per_second, disagreement: status.disagreement_ratio,
  };
  const recent = looks.filter((old) => now - old.at < kRates);
  const rates = recent.length > 0 ? between(recent[0].at, recent[0].traffic, now, look.traffic) : null;
  looks.push(Object.assign(look, rates));
  return recent;
}

const speed_text = (value) => `${fixed(value, 0)} img/s`;
const rate_text = (value) => `${show_bytes(value)}/s`;
// What each curve is of; from_zero where a height means something by itself.
const kCurves = [
  {name: 'loss', of: ['loss'], text: (value) => fixed(value, 4)},
  {name: 'speed', of: ['speed'], text: speed_text, from_zero: true},
  {name: 'disagreement', of: ['disagreement'], text: show},
  {name: 'bytes', of: ['up', 'down'], text: rate_text, from_zero: true},
];

// The commands of an SVG path through the looks that have the value, with a gap where there was no look.
function path_of(key, from, span, low, high) {
  let path = '';
  let before = -Infinity;
  for (const look of looks) {
    if (!is_number(look[key])) continue;
    const x = (look.at - from) / span * 600;
    const y = high > low ? 120 - (look[key] - low) / (high - low) * 120 : 60;
    path += look.at - before > kGap ? `M${x.toFixed(1)} ${y.toFixed(1)}h0` : `L${x.toFixed(1)} ${y.toFixed(1)}`;
    before = look.at;
  }
  return path;
}

function draw(figure, curve, now) {
  const part = (selector) => figure.querySelector(selector);
  const values = curve.of.flatMap((key) => looks.map((look) => look[key])).filter(is_number);
  put(part('.what'), curve.name);
  const newest = curve.of.map((key) => is_number(looks.at(-1)[key]) ? curve.text(looks.at(-1)[key]) : '-');
  const now_text = put(part('.now'), curve.of.length > 1 ? `up ${newest[0]}, down (dashed) ${newest[1]}` : newest[0]).textContent;
  const low = curve.from_zero ? 0 : Math.min(...values);
  const high = Math.max(...values);
  const span = Math.max(now - looks[0].at, kShortest);
  const ago = `${show_left(span / 1000)} ago`;
  put(part('.high'), values.length > 0 ? curve.text(high) : '');
  put(part('.low'), values.length > 0 ? curve.text(low) : '');
  put(part('.from'), ago);
  const range = values.length > 0 ? `between ${curve.text(Math.min(...values))} and ${curve.text(high)}` : 'nothing yet';
  put(part('title'), `${curve.name} since ${ago}: now ${now_text}, ${range}`);
  curve.of.forEach((key, i) => figure.querySelectorAll('path')[i].setAttribute('d', path_of(key, now - span, span, low, high)));
}

function neighbour_cells(edge, recent, now) {
  const old = recent.find((look) => look.edges.has(edge.id));   // an edge may be younger than the window
  const rates = old ? between(old.at, old.edges.get(edge.id), now, edge) : null;
  const note = is_number(edge.closed_for_s) ? `no edge for ${show_left(edge.closed_for_s)}`
    : edge.refused_why !== '' ? `refused: ${show(edge.refused_why)}` : show(edge.level_reason);
  return [show(edge.name), edge.edge === 'lost' ? 'lost' : show(edge.state), unit(edge.rtt_ms, 'ms'), show(edge.level),
    unit(edge.last_exchange_s, 's'), show(edge.exchanges), rates ? rate_text(rates.up) : '-', rates ? rate_text(rates.down) : '-',
    show(edge.disagreement_ratio), note];
}

const member_cells = (member) =>
  [show(member.name), show(member.state), show(member.address), show(member.samples), member.self ? 'this node' : show(member.reason)];

function members_by_state() {
  const states = ['joining', 'alive', 'suspect', 'dead', 'left'];
  const counts = states.map((state) => [status.members.filter((member) => member.state === state).length, state]);
  return counts.filter(([count]) => count > 0).map(([count, state]) => `${count} ${state}`).join(', ') || '-';
}

// How the run ended for a node that answers no more; empty where it ought to answer.
function end_sentence() {
  const {state, identical, participants} = status?.consensus ?? {};
  if (state === 'certified' || state === 'adopted')
    return `the run has ended: final consensus ${state}, ${identical}/${participants.length} replicas identical`;
  return status?.phase === 'leaving' ? 'the node has left the swarm' : '';
}

function show_end() {
  const {state, epoch, hash, identical, participants} = status.consensus;
  by_id('end').hidden = state === 'none';
  by_id('end').className = state === 'failed' ? 'failed' : '';
  put('consensus', show(state));
  put('votes', `epoch ${show(epoch)}, ${participants.length} participants, ${show(identical)} identical`);
  put('hash', hash === '' ? '' : `blake2b ${show(hash)}`);
  const names = new Map(status.members.map((member) => [member.id, member.name]));
  put('participants', participants.slice(0, kMostRows).map((id) => show(names.get(id) || id.slice(0, 8))).join(', '));
}

function show_figures() {
  const {progress, train, eval: evaluation, traffic, period, host} = status;
  const left = progress.left_s > 0 ? show_left(progress.left_s) : '-';
  const done = percent(progress.share);
  const loss = is_number(train.loss) ? fixed(train.loss, 4) : '-';
  const accuracy = evaluation ? `${fixed(evaluation.accuracy_ratio * 100, 2)} %` : '-';
  const speed = speed_text(train.images_per_second);
  put('speed', speed);
  put('swarm_speed', `swarm ${fixed(train.swarm_images_per_second, 0)}`);
  put('loss', loss);
  put('accuracy', accuracy);
  put('evaluated', evaluation ? `${show(evaluation.of)}, step ${show(evaluation.step)}` : '');
  put('left', left);
  put('done', `${done}  epoch ${fixed(progress.epoch, 2)}  step ${show(progress.step)}`);
  by_id('share').value = number(progress.share);
  put('swarm', `${members_by_state()}, ${show(progress.swarm_samples)} samples, disagreement ${show(status.disagreement_ratio)}, ` +
               `offers every ${show(period.steps)} steps`);
  put('net', `${show(status.address)}, sent ${show_bytes(traffic.bytes_sent)}, received ${show_bytes(traffic.bytes_received)}, ` +
             `queued ${show_bytes(traffic.queued_bytes)}`);
  put('host', `${fixed(host.cpu_ratio, 2)} cores, ${show_bytes(host.rss_bytes)}, ${show(train.device)} ${show(train.precision)}, ` +
              `batch ${show(train.batch)}, learning rate ${show(train.learning_rate)}`);
  put('waits', `gossip ${percent(train.gossip_wait_ratio)}, data ${percent(train.data_wait_ratio)}`);
  document.title = `${done} ${show(status.node.name)} - starling`;
  return `${show(status.phase)}, ${done}, ${speed}, loss ${loss}, accuracy ${accuracy}, left ${left}`;
}

function show_status() {
  const now = performance.now();
  const recent = remember(now);
  put('name', show(status.node.name));
  put('id', short(status.node.id));
  put('phase', show(status.phase));
  put('where', `swarm ${short(status.swarm.id)}  ${show(status.model.name)}  up ${show_left(status.node.uptime_s)}`);
  put_list(by_id('warnings'), status.warnings, 'li', (item, warning) => put(item, show(warning)));
  const summary = show_figures();
  if (now - said.at >= kSayEvery || said.phase !== status.phase) {
    said = {at: now, phase: status.phase};
    put('summary', summary);
  }
  show_end();
  const template = by_id('curve').content.firstElementChild;
  put_list(by_id('curves'), kCurves, 'figure', (figure, curve) => {
    if (figure.children.length === 0) figure.append(...template.cloneNode(true).children);
    draw(figure, curve, now);
  });
  put_rows('neighbours', status.neighbours.map((edge) => neighbour_cells(edge, recent, now)), 'no edge yet');
  put_rows('members', status.members.map(member_cells), 'nobody yet');
  by_id('node').hidden = false;
}

function show_contact(text, lost) {
  put('contact', text).className = lost ? 'lost' : '';
  document.body.className = lost ? 'lost' : '';
}

function ask_for_token() {
  by_id('node').hidden = true;
  const again = token === '' ? '' : 'That was not the token. ';
  put('asks', again + 'The node wants its token: the text in the file that http.token_file names.');
  token = '';
  by_id('door').hidden = false;
  by_id('token').focus();
  show_contact('waiting for the token', false);
}

// The code and the object of the node's answer; null where none came.
async function ask() {
  try {
    const headers = token === '' ? {} : {Authorization: `Bearer ${token}`};
    const answer = await fetch('/api/v1/status', {headers, cache: 'no-store', signal: AbortSignal.timeout(kPatience)});
    return {code: answer.status, body: await answer.json()};
  } catch {
    return null;
  }
}

async function look() {
  const answer = await ask();
  try {
    if (answer !== null) lost_at = '';
    if (answer === null) {
      lost_at ||= clock_text(new Date());
      const end = end_sentence();
      show_contact(`${end === '' ? '' : end + '; '}lost contact at ${lost_at}, trying again`, end === '');
    } else if (answer.code === 401) {
      ask_for_token();
    } else if (answer.code !== 200) {
      show_contact(`the node answers ${answer.code}: ${show(answer.body.error)}`, true);
    } else {
      status = answer.body;
      show_status();
      show_contact('live', false);
    }
  } finally {
    if (by_id('door').hidden) setTimeout(look, kLookEvery);   // otherwise a token sets it going again
  }
}

by_id('door').addEventListener('submit', (event) => {
  event.preventDefault();
  token = by_id('token').value;
  by_id('token').value = '';
  by_id('door').hidden = true;
  look();
});
look();
