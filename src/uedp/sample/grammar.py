"""What people write about in the sample corpus: a small grammar, one part per topic.

A rule is `name: alternative | alternative`, continued on indented lines. Inside an alternative
`{name}` is another rule, `{name.s}` its plural, `{NAME}` or `{NAME.field}` an entity that
`sample` chooses and marks; `(a|b)` is a choice, `[a]` may be left out, and `a(n)` becomes the
right article. A sentence that starts with `?` asks, with `!` requests; any other one states.

Common text is kept free of numbers, days, times and proper names, so that the marks are complete.
Alternatives come in order of use: the first is the most frequent.
"""

TOPICS: tuple[str, ...] = ("billing", "travel", "hiring", "support")

_COMMON = """
hello_all: hi all, | hello team, | hi everyone, | hello, | dear all, | hi there, | hello everybody,
  dear colleagues, | hi folks, | hey, | greetings, | hi team,
hello_one: hi {TO.first}, | hello {TO.first}, | dear {TO.first}, | {TO.first}, | hey {TO.first},
bye: thanks, | best, | regards, | cheers, | kind regards, | best wishes, | many thanks,
  all the best, | warmly, | yours,
sign: {bye} {ME.first} | {bye} {ME} | {bye} {ME.first} | {bye} {ME}, {EMPLOYER} | {ME.first}

lead_say: {lead_tell} | {lead_hear}
lead_tell: just so you know, | please note that | to keep you posted, | for the record,
  as discussed, | I should mention that | I wanted to let you know that | to be honest,
  a brief update: | for your information, | by the way, | as promised,
lead_hear: as far as I can tell, | it turns out that | I just heard that | it seems that
  in case you missed it, | from what I gather, | as you may know, | it looks as though
  word has it that | rumour has it that | as expected,
lead_ask: quick question: | a small question: | sorry to bother you, but | out of curiosity,
  before I forget: | I was wondering: | just to be sure: | forgive me for asking, but
  while we are at it, | a question for the group: | silly question, perhaps, but
lead_do: when you get a chance, | if you have a moment, | as soon as you can, | if possible,
  before you leave, | whenever it suits you, | if it is no trouble, | as agreed, | to be safe,
  to avoid confusion, | in the meantime, | when things are quieter,

because: because | since | as | given that | seeing that
soon: soon | shortly | as soon as possible | without delay | right away | before long
  when you can | at your convenience | sooner rather than later
hedge: probably | apparently | perhaps | possibly | presumably | clearly | obviously | most likely
often: again | once more | yet again | as usual | for no clear reason | without warning
  against all advice
feel: glad | sorry | relieved | worried | surprised | grateful | puzzled | annoyed | pleased | sure

past: {PAST} | on {BEFORE} | on {WEEKDAY} | {PAST} | on {BEFORE}
next: {NEXT} | on {AFTER} | on {WEEKDAY} | {NEXT} | on {AFTER}
by: by {TERM} | by {AFTER} | before {WEEKDAY} | by {WEEKDAY} | before {AFTER}
  no later than {AFTER}
since: since {WEEKDAY} | since {PAST} | since {BEFORE}

close_curt: thanks. | asap please. | your move. | that is all. | not urgent. | no excuses.
  see above.
close_plain: thanks. | thank you. | let me know. | please confirm. | any thoughts? | talk soon.
  more to follow. | happy to help. | does that work for you?
close_polite: thank you very much for your help. | many thanks in advance.
  please do not hesitate to ask. | I appreciate your patience. | sorry for the trouble.
  I would be most grateful. | with apologies for the short notice. | thank you for bearing with us.
  your advice would be very welcome. | your help means a lot.
close_chatty: anyway, enough from me! | what a mess, honestly. | fingers crossed!
  we really should have coffee soon. | you could not make it up. | never a dull moment here!
  it will all work out, I suppose. | hope the kids are well! | I owe you a slice of cake.
  funny how these things go. | at least the weather is nice.

after_named: you can reach me (on|at) {ME.phone}. | {COLLEAGUE3} has the details.
  my address is {ME.email}. | ask {COLLEAGUE3} at {COLLEAGUE3.email} if in doubt.
  (ring|call|phone) {COLLEAGUE3} on {COLLEAGUE3.phone} if I am out.
  {COLLEAGUE3} is standing in for me {next}. | I will be back at my desk {next}.
  please copy {COLLEAGUE3.email}. | I need an answer {by}. | {COLLEAGUE3} (agrees|knows|disagrees).
  my direct line is {ME.phone}. | we can discuss it {next}. | I am in {CITY} {next}.
  the switchboard at {EMPLOYER} is {EMPLOYER.phone}. | everyone at {EMPLOYER} knows by now.
  {EMPLOYER} has a policy for this. | the mailbox {EMPLOYER.email} is always open.
  (write|reply) to {ME.email}, not to this address.
"""

_BILLING = """
bill_doc: invoice | statement | receipt | credit note | bill | quote | purchase order | reminder
  estimate | remittance advice form | delivery note | expense claim | tax form
bill_adj: overdue | outstanding | corrected | duplicate | missing | disputed | unpaid | final
  revised | unsigned | partial | late | incomplete | itemised | inflated
pay: payment | transfer | refund | deposit | instalment | direct debit | wire | cheque | rebate
  standing order | prepayment
bill_team: accounting | the finance desk | accounts payable | the auditors | the bookkeeper
  procurement | the controller | the tax adviser | the treasurer | the credit department
bill_problem: the total does not match (the order|our records|the contract|the delivery note)
  the discount was left off | the tax was charged (at the wrong rate|by mistake)
  the currency is wrong | the reference number is missing | the bank rejected the {pay}
  the card on file has expired | the same item appears again further down
  freight was added without asking | the exchange rate looks off
  the late fee should have been waived | the unit price changed without notice
  the billing address is out of date | the quantity was rounded up
  the surcharge makes no sense | somebody keyed in the wrong amount
  the deposit was never deducted
  the subtotal leaves out the (postage|handling fee|customs duty|pallets)
  the warranty was billed as an extra | the {pay} went to a closed account
bill_fix: send a corrected invoice | reverse the charge | issue a credit note | hold the {pay}
  update the payment terms | post it to the right cost centre | release the funds
  write off the balance | extend the due date | waive the late fee | stop the direct debit
  split the bill | match it against the ledger | reissue the receipt | settle the difference
  book it under (overheads|marketing|consulting|equipment|catering|training) | close the dispute
  lower the credit limit | cancel the standing order | reconcile the figures
bill_done: reversed the charge | checked the ledger | paid the {bill_adj} {bill_doc}
  reconciled the figures | asked {bill_team} for help | filed the {bill_doc.s} by supplier
  split the costs between departments | found the missing {bill_doc} | cancelled the {pay}
bill_reason: the auditors are asking for it | the books close soon | the budget is nearly spent
  the supplier will not ship without it | the approval is still pending | cash is tight at present
  the contract says so | the customer has complained | the bank needs a reference
  our books do not balance otherwise | interest is adding up | the buyer is losing patience
  the credit limit has been reached | head office froze all spending
bill_state: in arrears | in credit | on hold | fully paid | under review | blocked
  flagged as a risk | past due | ready to be closed

billing_named:
  the {bill_adj} {bill_doc} for {CLIENT} (went out|was mailed) {past}[, but {bill_problem}].
  {CLIENT} wrote {past} that {bill_problem}; please look at the {MONTH} {bill_doc}.
  ! please {bill_fix} for {CLIENT} {by}[, {because} {bill_reason}].
  ? can you {bill_fix} on account {CLIENT.account} {by}?
  {CONTACT} from {CONTACT.org} called about the {bill_adj} {bill_doc} on account {CONTACT.account}.
  ? did the {pay} from {CLIENT} (arrive|clear|come through) {past}?
  the {pay} for {CLIENT.account} failed {past}, so {COLLEAGUE} had to {bill_fix}.
  {COLLEAGUE} (approved|rejected|queried) the {bill_adj} {bill_doc.s} {past}[ and told {bill_team}].
  ! send the {bill_doc} to {CONTACT.email} and copy {COLLEAGUE}[, otherwise it will get lost].
  I spoke with {COLLEAGUE} {past}, and we agreed to {bill_fix}[ {because} {bill_reason}].
  the {MONTH} statement for account {CONTACT.account} shows a(n) {bill_adj} {pay}.
  ! forward every {bill_adj} {bill_doc} from {VENDOR} to {COLLEAGUE.email}.
  {CLIENT} takes its {bill_doc.s} at {CLIENT.email} only.
  {EMPLOYER} will {bill_fix} for {CLIENT} {next}.
  {VENDOR} raised its (rates|prices|fees) {past}, and {bill_team} will have to {bill_fix}.
  ? who at {CLIENT} (handles|approves|signs) the {bill_doc.s}, now that {CONTACT} has left?
  {bill_team} at {EMPLOYER} will {bill_fix} {next}.
  ! call {CONTACT} on {CONTACT.phone} before we {bill_fix}.
  account {CONTACT.account} is {bill_state}, {because} {bill_reason}.
  the {pay} of {BEFORE} was booked against {CLIENT.account} by mistake.
  ? could {COLLEAGUE} look at account {CONTACT.account}, where {bill_problem}?
  {EMPLOYER} still owes {CLIENT} a(n) {bill_doc} for the work in {CITY}.
  our {CITY} office files its {bill_doc.s} by hand, which is why {bill_problem}.
  the auditors want to see every {bill_doc} for {CLIENT} since {MONTH}.
  ! change the billing contact for {CLIENT} to {CONTACT}, {CONTACT.email}.
  I left a message for {CONTACT} at {CONTACT.phone} about the {bill_adj} {pay}.
  {CONTACT} promised to (pay|settle|clear) the {bill_adj} {bill_doc} {by}.
  {CLIENT} moved to {CITY}, so the address on account {CLIENT.account} needs changing.
  ? has anyone told {CONTACT} that {bill_problem}?
  my expense claim for {CITY} was (returned|cut|queried) {past} because {bill_problem}.
  with {VENDOR} gone, {COLLEAGUE} will {bill_fix} and look for a cheaper supplier.
  ! let {COLLEAGUE} know that account {CLIENT.account} is {bill_state}.
  {CLIENT} pays in (euros|pounds|francs), so {COLLEAGUE} has to watch the exchange rate.
billing_plain:
  the {bill_adj} {bill_doc} does not add up: {bill_problem}.
  ? could someone from {bill_team} tell me why {bill_problem}?
  ! please {bill_fix} {soon}[, {because} {bill_reason}].
  we cannot {bill_fix} without a word from {bill_team}.
  I have {bill_done}, and yet {bill_problem}.
  ? has anybody seen the {bill_adj} {bill_doc}, or did it {hedge} get lost in the post?
  I am {feel} that {bill_team} will {bill_fix} {soon}.
  every {bill_adj} {bill_doc} has to pass through {bill_team}, even if {bill_reason}.
  we had better not {bill_fix} yet, {because} {bill_reason}.
  the customer refuses to settle the {bill_doc} {because} {bill_problem}.
  ? should we {bill_fix} or simply {bill_fix}?
  the {pay} is {bill_state}; {hedge} {bill_problem}.
  {bill_team} would rather {bill_fix} than argue about a(n) {bill_adj} {bill_doc}.
  ! check the {bill_doc} before you {bill_fix}.
  I went through the {bill_adj} {bill_doc.s} line by line and saw that {bill_problem}.
  ? is there a form to {bill_fix}, or must {bill_team} do that by hand?
  nobody warned me that {bill_problem}, and {bill_reason}.
billing_curt:
  {bill_doc} is wrong {often}, {bill_problem}.
  ! {bill_fix}, then {bill_fix}.
  still no {pay}; {bill_reason}.
  ? why is the {bill_doc} {bill_state}?
  ! stop sending {bill_adj} {bill_doc.s} to my desk.
  need the {bill_adj} {bill_doc} {soon}, {bill_reason}.
billing_after: the amount itself is not in dispute. | {bill_team} can explain the terms.
  otherwise the penalty clause applies. | I attached the {bill_adj} {bill_doc} as a PDF.
  we would like to {bill_fix} afterwards. | the ledger shows the same gap.
  they want to pay by (card|bank transfer). | please quote the reference on every {bill_doc}.
  a(n) {bill_adj} {bill_doc} would be enough. | my guess is that {bill_problem}.
  interest on the {bill_adj} {pay.s} is small, but still. | it helps the cash flow.
"""

_TRAVEL = """
hop: flight | connection | departure
leg: flight | train | connection | ferry | shuttle | coach | sleeper train
trip: trade fair | site visit | workshop | conference | customer meeting | plant tour
  board retreat | kick-off | training course | contract signing | product launch | road show
  exhibition
trip_paper: ticket | booking | itinerary | visa | boarding pass | passport | voucher | travel permit
  insurance card | parking permit
trip_adj: {trip_dull} | {trip_nice}
trip_dull: crowded | bumpy | exhausting | expensive | noisy | chilly | slow
trip_nice: cheap | comfortable | scenic | pleasant | luxurious | punctual
trip_want: direct | early | cheap | refundable | later | flexible | faster | safer
trip_problem: {trip_mishap} | {trip_worry}
trip_worry: the connection is too tight | the visa has not been stamped | the fare has gone up
  the ticket carries the wrong name | the seats are not together | a strike has been announced
  the road over the pass is blocked | heavy rain is forecast | the hotels are fully booked
  the timetable is about to change
trip_mishap: the {leg} was cancelled | the luggage went missing | the hotel lost our reservation
  the {leg} was delayed by (fog|snow|a strike|a storm) | the rental desk had no cars left
  the airport shuttle never came | the runway was closed | the gate changed at the last moment
  my suitcase arrived without a wheel | customs searched every bag | the lift broke down
  the driver got lost | the platform was flooded
trip_fix: rebook the {leg} | book an aisle seat | cancel the hotel | move the departure
  ask for a refund on the {trip_paper} | take the train instead | share a taxi from the airport
  reserve a quieter room | renew the passport | apply for the visa | stay near the (harbour|station)
  pack a lighter suitcase | print the boarding passes | swap to a direct {leg} | hire a van
  arrange a pickup at the (terminal|station|pier) | travel with hand luggage only | join by video
  bring warm clothes | leave the car at the airport
trip_detour: rebook everything | take the train instead | sleep at the airport | hire a van
  join by video | share a taxi | queue for vouchers | turn back | stay with friends
trip_done: booked the {leg} | packed the suitcase | lost the {trip_paper} | missed the {leg}
  found a(n) {trip_want} {leg} | collected the {trip_paper.s} | upgraded the room
  walked to the hotel | checked in online | swapped seats with a stranger
trip_reason: the {trip} was moved | the meeting starts early | the fare runs out soon
  I get seasick | the hotels are filling up | the budget only covers economy class
  the airline wants a name on the booking | we need to carry samples | nobody likes waiting around
  the roads are icy | the visitors bring their families | the venue is far from the centre
  my back hurts on long rides
trip_view: {trip_good} | {trip_bad}
trip_good: the breakfast was superb | the view over the bay was stunning | the host was charming
  the old town was worth a stroll | the coffee was excellent | the sunset was gorgeous
  the concierge was helpful | the sauna was open
trip_bad: the food was dreadful | the beds were hard | the wifi hardly worked | the walls were thin
  the gym smelled of paint | the museum was closed | the heating rattled | the towels were damp
trip_party: the travel desk | the organisers | the booking office | the embassy | the front desk
  the crew | the tour guide | the delegation

travel_named:
  my {hop} to {CITY} leaves {next}[, but {trip_worry}].
  {COLLEAGUE} and I are flying to {CITY} {next} for the {trip}.
  ! please book a room at {HOTEL} in {CITY} {by}.
  ? is there a(n) {trip_want} {hop} from {CITY} to {CITY2} {next}?
  {CARRIER} (cancelled|delayed|moved) our departure to {CITY} {past}, so we had to {trip_detour}.
  the {trip} in {CITY} starts {next}, so please {trip_fix} {soon}.
  ! meet {CONTACT} at the (airport|station|harbour) in {CITY} {next}.
  {CONTACT} from {CONTACT.org} will pick us up; the number is {CONTACT.phone}.
  ? could {COLLEAGUE} {trip_fix} before the {trip} in {CITY}?
  I stayed at {HOTEL} {past}, and {trip_view}.
  {HOTEL} charged account {CONTACT.account} for the room, although {trip_bad}.
  ! send my {trip_paper} to {ME.email}, {because} {trip_reason}.
  we (landed|arrived|got stuck) in {CITY} {past} {because} {trip_mishap}.
  {CLIENT} invited {COLLEAGUE} to the {trip} in {CITY}.
  ? who is travelling to {CITY} with {COLLEAGUE} {next}?
  the {hop} between {CITY} and {CITY2} was {trip_dull}, but at least {trip_good}.
  ! tell {CONTACT} at {CONTACT.email} that {trip_problem}.
  {COLLEAGUE} left the {trip_paper} at {HOTEL} {past}.
  {EMPLOYER} pays for the {leg} if we {trip_fix} {by}.
  {EMPLOYER} wants us to {trip_fix} whenever we visit {CLIENT}.
  I am leaving {HOME} for {CITY} {next}, although {trip_worry}.
  ? does {CARRIER} still go from {HOME} to {CITY}?
  ! put the {trip} at {CLIENT} on the calendar for {AFTER}.
  {trip_party} in {CITY} asked for {COLLEAGUE} by name.
  my hosts in {CITY} are {CONTACT} and {CONTACT2}, and {trip_view}.
  after the {trip} {COLLEAGUE} will go on to {CITY} with {CARRIER}.
  ! ring {CARRIER} and {trip_fix}, {because} {trip_reason}.
  {CLIENT} is paying for the {hop} to {CITY}, so keep the {trip_paper.s}.
  ? did {CONTACT} mention which {hop} to take from {CITY}?
  the return {hop} to {HOME} was {trip_nice}, but {trip_bad}.
  I have to be in {CITY} {by}, so I will {trip_fix}.
  {COLLEAGUE} knows a (quieter|shorter|safer) route through {CITY} without tolls.
travel_plain:
  I have {trip_done}, but {trip_worry}.
  ? could {trip_party} {trip_fix}, {because} {trip_reason}?
  ! please {trip_fix} {soon}[, {because} {trip_reason}].
  the {leg} was (rather|terribly|pretty) {trip_dull}, though {trip_good}.
  we should {trip_fix} for the {trip}, {because} {trip_reason}.
  ? do I need a(n) {trip_paper} for the {trip}, or can I {trip_fix}?
  I am {feel} that I {trip_done} before {trip_mishap}.
  {trip_party} could not {trip_fix} {because} {trip_problem}.
  I would never take the {trip_dull} {leg} when {trip_reason}.
  next time I will {trip_fix} and {trip_fix}.
  ? has anyone taken the {leg} lately, and was it {trip_adj}?
  the hotel was fine and {trip_good}, but {trip_mishap}.
  a(n) {trip_want} {leg} is {hedge} the best choice {because} {trip_reason}.
  ! ask {trip_party} whether we can {trip_fix}.
  I left the {trip_paper} at home, so {trip_party} will have to wait.
  ? would you rather {trip_fix} or {trip_fix}?
  the whole group {trip_done} and then {trip_mishap}.
travel_curt:
  {leg} {trip_dull} {often}, {trip_mishap}.
  ! {trip_fix}, {trip_reason}.
  no {trip_paper}, no {trip}; sort it out {soon}.
  ? who {trip_done} for the {trip}?
  stuck at the (airport|border|station|pier), {trip_mishap}.
  need a(n) {trip_want} {leg} back from the {trip}.
travel_after: {trip_party} will confirm the seats. | I would prefer a window seat.
  bring an umbrella and sturdy shoes. | the {trip_paper} is in the blue folder.
  we can always {trip_fix}. | I heard that {trip_view}. | keep every receipt for petrol and meals.
  jet lag is going to hurt. | the {trip} dinner is on the terrace. | {trip_party} said the same.
  there is a (bakery|pharmacy|flea market|launderette) around the corner.
  vegetarian meals must be ordered ahead.
"""

_HIRING = """
job: data analyst | account manager | backend developer | office administrator | payroll clerk
  warehouse planner | product designer | sales engineer | legal counsel | research assistant
  customer agent | technician | copywriter | procurement lead | translator | receptionist
  safety inspector | illustrator | economist | forklift operator
job_adj: senior | junior | part-time | temporary | permanent | remote | experienced | bilingual
  freelance | qualified | entry-level | interim
step: interview | phone screen | assessment | reference check | panel | trial task | case study
  background check | presentation | aptitude test | portfolio review
hire_fix: draft the offer letter | post the advert again | schedule a(n) {step}
  check the references
  raise the salary band | shortlist the remaining applicants | prepare the onboarding plan
  order a laptop and a badge | update the job description | decline the others politely
  sign the employment contract | widen the search | ask for a portfolio | freeze the vacancy
  promote somebody from within | reply to the applicants | extend the probation
  talk to the works council | brief the interviewers | advertise on the careers page
hire_view: asked thoughtful questions | led a small team before | seemed nervous but honest
  explained the gap in the CV | struggled with the case study | negotiated hard on salary
  impressed the whole panel | wanted to work from home | gave vague answers
  showed real curiosity | talked over everyone | brought a beautiful portfolio
  turned out to be overqualified | had excellent references | forgot to attach a CV
  solved the trial task with ease | spoke warmly about mentoring | lacked a driving licence
hire_reason: the notice period is long | another employer is interested | the team is short-staffed
  the headcount was approved | the candidate withdrew | somebody is going on parental leave
  the agency fee is steep | the role has been vacant far too long
  the manager keeps changing the brief
  good people are scarce | the workload keeps growing | the union has questions
  a contractor is about to leave | our pay is below the market
applicant: candidate | applicant | finalist | intern | graduate | trainee | apprentice | newcomer
  contractor | volunteer
hire_party: the people team | the hiring manager | the recruiters | the panel | the department head
  the staff council | the talent team | the director
quality: patience | diplomacy | curiosity | stamina | humour | discipline | tact | initiative
  fluency in spreadsheets | attention to detail | leadership | empathy
perk: pension plan | bonus | parking space | flexible schedule | gym membership
  childcare allowance | relocation package | training budget | company bicycle | canteen discount

hiring_named:
  {CONTACT} (applied|interviewed) for the {job} role {past} and {hire_view}.
  ! please invite {CONTACT} to a(n) {step} in {CITY} {next}.
  ? can you and {COLLEAGUE} {hire_fix} {by}?
  {COLLEAGUE} will run the {step} with {CONTACT} {next}.
  {AGENCY} sent us a(n) {job_adj} {job} who {hire_view}.
  ! send the offer to {CONTACT}, {CONTACT.email}, {by}.
  I called {CONTACT} on {CONTACT.phone}, who {hire_view} and can start {next}.
  the {CITY} office needs a(n) {job_adj} {job} {by}[, {because} {hire_reason}].
  ? what did {COLLEAGUE} think of {CONTACT} after the {step}?
  {CONTACT} is leaving {CONTACT.org} and could join us {next}.
  {EMPLOYER} is looking for a(n) {job_adj} {job} with {quality} and {quality}.
  ! ask {COLLEAGUE} to {hire_fix} {because} {hire_reason}.
  {CONTACT} (accepted|declined|signed) our offer {past}[, mostly because of the {perk}].
  the reference from {CLIENT} says that {CONTACT} {hire_view}.
  ? is {CONTACT} still at {CONTACT.org}, or has the notice period ended?
  {COLLEAGUE} was promoted to {job_adj} {job} {past}, so we must {hire_fix}.
  it is better not to call {CONTACT} at {CONTACT.org}; write to {CONTACT.email} instead.
  the {step.s} for the {job} role are in {CITY} {next}.
  ? would {CONTACT} come to {EMPLOYER} for a(n) {perk}?
  {AGENCY} wants {EMPLOYER} to {hire_fix} {by}.
  {COLLEAGUE} and {COLLEAGUE2} disagree about {CONTACT}, who {hire_view}.
  ? should {CONTACT} get the {perk}, {because} {hire_reason}?
  a(n) {job} from {CITY} {hire_view} {past}, and {hire_party} would like to {hire_fix}.
  ! book {COLLEAGUE} for the {step} {next} and warn {hire_party}.
  {CONTACT} would move from {CITY} if we offered a(n) {perk}.
  our new {job} {CONTACT} starts {next}; please {hire_fix}.
  {CLIENT} hired our best {job} {past}, and {hire_reason}.
  ? who can cover for {COLLEAGUE} at the {step} {next}?
  the {applicant.s} from {AGENCY} are waiting for {COLLEAGUE} to {hire_fix}.
  {COLLEAGUE} worked with {CONTACT} at {CLIENT} and praised their {quality}.
  ! pay the agency fee from account {CONTACT.account}, {CONTACT} has signed.
  {hire_party} met {CONTACT} in {CITY} {past} and could not be convinced.
hiring_plain:
  the {applicant} {hire_view}, so we should {hire_fix}.
  ? could {hire_party} {hire_fix} {soon}, {because} {hire_reason}?
  ! please {hire_fix} {soon}[, {because} {hire_reason}].
  we need a(n) {job_adj} {job} who has {quality} and {quality}.
  {hire_party} would like to {hire_fix} before the {step}.
  ? did the {applicant} who {hire_view} ever answer about the {perk}?
  I am {feel} that the {job_adj} {applicant} {hire_view}.
  nobody on the shortlist has enough {quality} for a(n) {job_adj} {job}.
  ! let us {hire_fix} and then {hire_fix}.
  the {job} vacancy is open {often} {because} {hire_reason}.
  ? does a(n) {job_adj} {job} usually get a(n) {perk}?
  during the {step} the {applicant} {hire_view}, which {hedge} settles it.
  most {job_adj} {applicant.s} ask about the {perk} and the {perk}.
  ! remind {hire_party} to {hire_fix}, {because} {hire_reason}.
  for a(n) {job}, {quality} matters more than the {step}.
  ? shall we {hire_fix}, or is it too early for that?
  the advert for the {job} forgot to mention the {perk}.
hiring_curt:
  {job} vacancy still open, {hire_reason}.
  ! {hire_fix}, the {applicant} {hire_view}.
  not convinced; the {applicant} {hire_view}.
  ? any news from {hire_party} on the {job}?
  ! more {quality}, less {quality}, and {hire_fix}.
  {step} went badly, the {applicant} {hire_view}.
hiring_after: {hire_party} will have the final say. | the {perk} might tip the balance.
  we liked the {quality} most. | salaries are discussed later. | their CV is on the shared drive.
  please keep it confidential. | the rejected {applicant.s} deserve a kind reply.
  I would also {hire_fix}. | diversity on the panel matters. | it is a demanding role.
  the induction covers safety and ethics. | let us not rush the {step}.
"""

_SUPPORT = """
gadget: {app} | {device}
app: dashboard | login page | mobile app | export tool | mailbox | search box | plugin
  calendar sync | customer portal | database | shared folder | chat widget | booking form
device: printer | router | scanner | headset | card reader | projector | backup server | tablet
  docking station | coffee machine | badge printer | monitor
glitch: keeps freezing | drops the connection | fails with a cryptic error | refuses to connect
  crashes on start | runs painfully slowly | goes blank | stops responding
app_glitch: times out | shows a blank screen | asks for the password over and over
  sends duplicate alerts | forgets the saved settings | deletes old drafts | hides the menu
  rejects valid passwords | uploads empty files | ignores every click
device_glitch: makes a strange noise | overheats under load | flickers when plugged in
  blinks red | smells of burnt plastic | switches itself off | needs a new fuse
  hums loudly | will not switch on
broken: {app} {app_glitch} | {device} {device_glitch} | {gadget} {glitch}
glitch_cause: a certificate has expired | the disk is full | the latest update broke it
  a firewall rule is blocking it | the cable is loose | the licence has lapsed | the queue is stuck
  the battery is worn out | the browser cache is stale | somebody changed the permissions
  the driver is incompatible | the memory leaks | the network is congested
  a script runs in an endless loop | the proxy was misconfigured | the index is corrupt
tech_fix: restart the {gadget} | clear the cache | reset the password | roll back the update
  escalate the ticket | reinstall the driver | attach a screenshot | collect the logs
  restore the backup | swap the cable | raise the priority | patch the plugin | merge the tickets
  check the firewall | replace the battery | grant access to the shared folder | test it on a tablet
  disable the extension | rename the files | unlock the profile | document the workaround
tech_done: restarted the {gadget} | cleared the cache | changed the password | unplugged everything
  reinstalled the software | read the manual | tried another browser | followed the instructions
  updated the firmware | opened a ticket | called the helpline | sent the logs
tech_adj: urgent | recurring | minor | known | unresolved | embarrassing | intermittent | critical
  harmless | puzzling
issue: outage | bug | error | crash | complaint | incident | ticket | glitch | fault | warning
tech_party: the helpdesk | the developers | the network team | the vendor | the on-call engineer
  the security team | the administrators | the testers
tech_reason: customers are complaining | nobody can log in | the demo is coming up
  we lose data otherwise | the phones will not stop ringing | the workaround is clumsy
  the release is frozen | security insists on it | the whole floor is offline
  the old version is no longer supported | the contract promises a quick response
  orders are piling up | the spare is broken too

support_named:
  {CONTACT} from {CONTACT.org} reports that the {broken}; it started {past}.
  ! please {tech_fix} for {COLLEAGUE} {by}[, {because} {tech_reason}].
  ? can {COLLEAGUE} {tech_fix}, {because} {tech_reason}?
  the {gadget} in {CITY} has been down {since}[, and {tech_reason}].
  {CLIENT} opened a(n) {tech_adj} ticket {past}: the {broken}.
  ! call {CONTACT} back on {CONTACT.phone}; their {broken}.
  account {CONTACT.account} was locked {past} after the {gadget} failed.
  ? who looks after the {gadget} for {CLIENT} while {COLLEAGUE} is away?
  {COLLEAGUE} thinks that {glitch_cause} on the {gadget} in {CITY}.
  {VENDOR} confirmed the {issue} {past} and promised a fix {by}.
  ! send the logs to {COLLEAGUE.email} and {tech_fix}.
  the hotline of {VENDOR} is {VENDOR.phone}, for whenever the {broken}.
  ? is {EMPLOYER} the only customer whose {broken}?
  I {tech_done} with {CONTACT} on the line, but the {gadget} still {glitch}.
  the {tech_adj} {issue} at {CLIENT} was reopened {past}, {because} {glitch_cause}.
  ? did {VENDOR} say when they will {tech_fix}?
  {CONTACT} cannot open account {CONTACT.account} because the {broken}.
  {EMPLOYER} has a new rule: everyone must {tech_fix} {by}.
  ! write to {CONTACT.email} that we will {tech_fix} {next}.
  {COLLEAGUE} {tech_done} {past}, yet the {broken}.
  the {gadget} from {VENDOR} {glitch} whenever {CLIENT} calls.
  ? has {COLLEAGUE} heard from {CONTACT} about the {tech_adj} {issue}?
  {CLIENT} will leave us unless we {tech_fix} {by}.
  ! give {CONTACT} access to the {gadget} under {CONTACT.account}.
  our colleagues in {CITY} {tech_done} {past}, and it {hedge} helped.
  {COLLEAGUE} is visiting {CLIENT} in {CITY} {next} to {tech_fix}.
  I told {CONTACT} that {glitch_cause} and that we would {tech_fix} {by}.
  the {issue} of {BEFORE} came back: the {gadget} at {CLIENT} {glitch}.
  ? could you {tech_fix} on {CLIENT.account} before {COLLEAGUE} notices?
  {VENDOR} blames {EMPLOYER}, but {tech_party} found that {glitch_cause}.
  {CONTACT} left {CONTACT.phone} as a number, {because} the {broken}.
  ! ask {COLLEAGUE} on {COLLEAGUE.phone} to {tech_fix}.
  thanks to {COLLEAGUE} the {gadget} in {CITY} has been stable {since}.
support_plain:
  the {broken} {often}, {hedge} because {glitch_cause}.
  ? could {tech_party} {tech_fix}, {because} {tech_reason}?
  ! please {tech_fix} {soon}[, {because} {tech_reason}].
  I {tech_done}, but the {gadget} still {glitch}.
  my {broken} whenever I try to {tech_fix}.
  ? is it a(n) {tech_adj} {issue} that the {broken}?
  {tech_party} closed the ticket although the {broken}.
  I am {feel} that {tech_party} could {tech_fix} so quickly.
  it is unwise to {tech_fix} while the {gadget} is busy.
  a(n) {tech_adj} {issue} like this means that {glitch_cause}.
  ? should I {tech_fix} before I {tech_fix}?
  somebody {tech_done}, and now the {broken}.
  most {tech_adj} {issue.s} go away once you {tech_fix}.
  ! tell {tech_party} that the {broken} and {tech_reason}.
  {glitch_cause}, so {tech_party} will {tech_fix}.
  ? why does nobody {tech_fix} when {tech_reason}?
  the {gadget} works, but the {gadget} next to it {glitch}.
support_curt:
  {broken} {often}, {glitch_cause}.
  ! {tech_fix} {soon}, {tech_reason}.
  {tech_done} already, no luck; it still {glitch}.
  ? who broke the {gadget} this time?
  same {tech_adj} {issue} {often}: {broken}.
  ! {tech_fix} and {tech_fix}, then close it.
support_after: I already {tech_done}. | my guess is that {glitch_cause}.
  the error log is attached. | {tech_party} will look into it. | it only happens with the {gadget}.
  a reboot did not help.
  please mark it as {tech_adj}. | in the worst case we {tech_fix}. | the manual is no help either.
  the spare {device} works fine. | other teams see the same {issue}. | I can share my screen.
"""


def _parse(text: str) -> dict[str, tuple[str, ...]]:
    rules: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        body = line
        if not line[0].isspace():
            name, body = line.split(":", 1)
            current = rules.setdefault(name, [])
        # A bar between spaces separates alternatives; inside a choice it has none.
        current += [alternative.strip() for alternative in body.split(" | ") if alternative]
    return {name: tuple(alternatives) for name, alternatives in rules.items()}


RULES: dict[str, tuple[str, ...]] = _parse("".join((_COMMON, _BILLING, _TRAVEL, _HIRING, _SUPPORT)))
